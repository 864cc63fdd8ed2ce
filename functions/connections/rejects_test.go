package connections

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestRejectsInvalidRequests names the field, and creates no trust.
func TestRejectsInvalidRequests(t *testing.T) {
	t.Parallel()
	app, _, _, _ := started(t, nil)
	p := testkit.BorrowProject(t)
	app = app.As(p.Token(t))
	many := `"` + strings.Repeat(`x", "`, 100) + `x"`
	trust := func(more string) string { return asking("trust", ", "+more) }
	whole := func(actions, end string) string {
		return fmt.Sprintf(`{"kind": "trust", "actions": %s, "expires_at": %q}`, actions, end)
	}
	for _, tc := range []struct{ method, path, body, field string }{
		{"POST", "", `{}`, "kind"},
		{"POST", "", asking("x", ""), "kind"},
		{"POST", "", trust(`"id": "x"`), "id"},
		{"POST", "", trust(`"secret": "x"`), "secret"},
		{"POST", "", trust(`"auth_url": "x"`), "auth_url"},
		{"POST", "", trust(`"region": "x"`), "region"},
		{"POST", "", trust(`"roles": []`), "roles"},
		{"POST", "", trust(`"roles": ["admin"]`), "roles"},
		{"POST", "", trust(`"roles": ["member", "member"]`), "roles"},
		{"POST", "", trust(`"roles": ["reader"]`), "roles"},
		{"POST", "", asking("application_credential", `, "roles": ["member"], "id": "x", "secret": "x"`), "roles"},
		{"POST", "", asking("application_credential", ``), "id"},
		{"POST", "", asking("application_credential", `, "id": "x"`), "secret"},
		{"POST", "", asking("application_credential", `, "id": "x", "secret": "x", "auth_url": ""`), "auth_url"},
		{"POST", "", asking("application_credential", `, "id": "x", "secret": "x", "region": ""`), "region"},
		{
			"POST", "", asking("application_credential", `, "id": "x", "secret": "x", "auth_url": "http://169.254.169.254/v3"`),
			"auth_url",
		},
		{"POST", "", whole(`[]`, soon(time.Hour)), "actions"},
		{"POST", "", whole(`["start", "start"]`, soon(time.Hour)), "actions"},
		{"POST", "", whole(`["start", "fly"]`, soon(time.Hour)), "actions[1]"},
		{"POST", "", whole(`["start"]`, "tomorrow"), "expires_at"},
		{"POST", "", whole(`["start"]`, soon(-time.Second)), "expires_at"},
		{"POST", "", whole(`["start"]`, soon(367*24*time.Hour)), "expires_at"},
		{"POST", "", trust(`"quota": {"instances": -1}`), "quota.instances"},
		{"POST", "", trust(`"usable_by": [` + many + `]`), "usable_by"},
		{"POST", "", trust(`"usable_by": ["a b"]`), "usable_by[0]"},
		{"POST", "", trust(`"usable_by": ["` + p.UserID + `", "alt"]`), "usable_by[1]"},
		{"POST", "", trust(`"usable_by": ["` + strings.ToUpper(p.ID) + `x"]`), "usable_by[0]"},
		{"POST", "", trust(`"usable_by": ["` + p.ID[1:] + `"]`), "usable_by[0]"},
		{"POST", "", trust(`"idle_timeout": "59m"`), "idle_timeout"},
		{"POST", "", trust(`"idle_timeout": "8785h"`), "idle_timeout"},
		{"GET", "?status=lost,", "", "status[1]"},
		{"GET", "?usable=true&status=active", "", "status"},
		{"GET", "/access-rules?actions=start,fly", "", "actions[1]"},
		{"GET", "/access-rules?actions=start,start", "", "actions"},
	} {
		a := app.Do(t, tc.method, "/v1/connections"+tc.path, tc.body, "Content-Type", "application/json")
		if a.Status != 400 || !testkit.Names(t, a, tc.field) {
			t.Errorf("%s %s %.200s: got %d %s, want 400 that names %s", tc.method, tc.path, tc.body, a.Status, a.Body,
				tc.field)
		}
	}
	var roles struct{ Errors []struct{ Allowed []string } }
	if app.Post(t, "/v1/connections", trust(`"roles": ["admin"]`)).JSON(t, &roles); strings.Join(roles.Errors[0].Allowed,
		" ") != "creator load-balancer_member member reader" {
		t.Errorf("allowed are %v", roles)
	}
	a := app.Post(t, "/v1/connections", trust(`"usable_by": ["alt"]`))
	for _, says := range []string{
		`\"alt\" is not the id of a user or a project`, "32 or 64 digits",
		"openstack user show -f value -c id alt",
	} {
		if !strings.Contains(string(a.Body), says) {
			t.Errorf("a name is rejected with %s, want %s", a.Body, says)
		}
	}
	if left := p.Trusts(t); len(left) != 0 {
		t.Errorf("rejected requests have made the trusts %v", left)
	}
}

// TestVisibility: the project sees the whole connection, callers authorized to act through it see less, and others get
// the answer for an unknown connection.
func TestVisibility(t *testing.T) {
	t.Parallel()
	app, _, _, _ := started(t, nil)
	owner, named, team, stranger := testkit.BorrowProject(t), testkit.BorrowProject(t), testkit.BorrowProject(t),
		testkit.BorrowProject(t)
	same := colleague(t, owner, "member")
	looks := colleague(t, owner, "reader")
	teamReader := colleague(t, team, "reader")
	c := create(t, app.As(owner.Token(t)), asking("trust", fmt.Sprintf(`, "usable_by": [%q, %q]`, named.UserID, team.ID)))
	none := uuid.NewString()
	path, nowhere := "/v1/connections/"+c.ID.String(), "/v1/connections/"+none
	for _, tc := range []struct {
		who, token            string
		status, deleted       int
		full, listed, usables bool
	}{
		{"owner", owner.Token(t), 200, 0, true, true, true},
		{"another user of the project", same, 200, 0, true, true, false},
		{"a reader of the project", looks, 200, 403, true, true, false},
		{"a named user", named.Token(t), 200, 403, false, false, true},
		{"a user of a named project", team.Token(t), 200, 403, false, false, true},
		{"a reader of a named project", teamReader, 404, 403, false, false, false},
		{"a stranger", stranger.Token(t), 404, 404, false, false, false},
	} {
		client := app.As(tc.token)
		a := client.Get(t, path)
		if a.Status != tc.status {
			t.Errorf("%s: got %d %s", tc.who, a.Status, a.Body)
		}
		if full := bytes.Contains(a.Body, []byte("acts_as")); full != tc.full ||
			full != bytes.Contains(a.Body, []byte(`"usable_by"`)) ||
			full != bytes.Contains(a.Body, []byte("suggested_access_rules")) {
			t.Errorf("%s is shown %s", tc.who, a.Body)
		}
		if tc.status == 404 && unnamed(a, c.ID.String()) != unnamed(client.Get(t, nowhere), none) {
			t.Errorf("%s can tell it from an unknown one: %s", tc.who, a.Body)
		}
		for query, want := range map[string]bool{"": tc.listed, "?usable=true": tc.usables} {
			list := client.Get(t, "/v1/connections"+query).Body
			if listed := bytes.Contains(list, []byte(c.ID.String())); listed != want {
				t.Errorf("%s: listed by %q is %v", tc.who, query, listed)
			}
		}
		if tc.deleted == 0 {
			continue
		}
		if d := client.Do(t, "DELETE", path, ""); d.Status != tc.deleted || d.Status == 404 &&
			unnamed(d, c.ID.String()) != unnamed(client.Do(t, "DELETE", nowhere, ""), none) {
			t.Errorf("%s deletes with %d %s", tc.who, d.Status, d.Body)
		}
	}
}

// unnamed is an answer without what is its own: the request's id, and the connection's.
func unnamed(a testkit.Answer, id string) string {
	text := strings.ReplaceAll(string(a.Body), strings.TrimPrefix(a.Header.Get("X-Request-Id"), "req-"), "")
	return strings.ReplaceAll(text, id, "")
}

// TestDeleteLeavesTheTrust to run-connections when another user deletes the connection, because Keystone would reject
// the token, and when Keystone is unavailable.
func TestDeleteLeavesTheTrust(t *testing.T) {
	t.Parallel()
	proxy := testkit.Redirect(t)
	app, conn, _, woken := started(t, proxy.Env(t, "demo"))
	p := testkit.BorrowProject(t)
	owner, same := app.As(p.Token(t)), app.As(colleague(t, p, "member"))
	if a := owner.Get(t, "/v1/connections"); a.Status != 200 { // its token is known from here on
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	for n, who := range []*testkit.Client{same, owner} {
		path := "/v1/connections/" + create(t, owner, asking("trust", "")).ID.String()
		if who == owner {
			proxy.Close()
		}
		if a := who.Do(t, "DELETE", path, ""); a.Status != 204 {
			t.Fatalf("got %d %s", a.Status, a.Body)
		}
		woken.Await(t, "run-connections")
		var shown Connection
		owner.Get(t, path).JSON(t, &shown)
		if shown.Status != "deleted" || shown.Revocation != domain.RevocationPending {
			t.Errorf("it is shown as %+v", shown)
		}
		if left := p.Trusts(t); len(left) != n+1 {
			t.Errorf("Keystone has %v", left)
		}
	}
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from connections where revoked"); n != 0 {
		t.Errorf("%d are revoked", n)
	}
}

// TestConcurrentDeletes succeed once.
func TestConcurrentDeletes(t *testing.T) {
	t.Parallel()
	app, conn, _, _ := started(t, nil)
	p := testkit.BorrowProject(t)
	app = app.As(p.Token(t))
	c := create(t, app, asking("trust", ""))
	statuses := make(chan int, 4)
	for range cap(statuses) {
		go func() { a, _ := app.Try(t, "DELETE", "/v1/connections/"+c.ID.String(), ""); statuses <- a.Status }()
	}
	count := map[int]int{}
	for range cap(statuses) {
		count[<-statuses]++
	}
	if count[204] != 1 || count[404] != 3 {
		t.Errorf("got %v", count)
	}
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from events where subject = $1", c.ID.String()); n != 2 {
		t.Errorf("there are %d events", n)
	}
	if left := p.Trusts(t); len(left) != 0 {
		t.Errorf("Keystone has %v", left)
	}
}

// TestLongSecretsAreNotLogged runs a process of its own, which has no private key and needs the public key.
func TestLongSecretsAreNotLogged(t *testing.T) {
	t.Parallel()
	env := testkit.Env(t, testkit.Database(t), map[string]string{
		"FUNCTION_TARGET": "connections", "LOG_LEVEL": "DEBUG", "SEAL_PRIVATE_KEY": "", "CONNECTION_PRIVATE_KEY": "",
		"OS_CLOUD": "demo",
	})
	process := testkit.Spawn(t, env)
	p := testkit.BorrowProject(t)
	app := process.As(p.Token(t))
	id, secret := p.AppCredential(t)
	create(t, app, handing(id, secret, ""))
	app.Post(t, "/v1/connections", handing(id, testkit.Canary("canary-"+secret), ""))
	app.Post(t, "/v1/connections", handing(id, testkit.Canary("canary-2-"+secret),
		`, "auth_url": "http://u:canary@127.0.0.1/v3"`))
	app.Do(t, "DELETE", "/v1/connections/"+create(t, app, asking("trust", "")).ID.String(), "")
	if code := process.Terminate(t, 10*time.Second); code != 0 {
		t.Errorf("it ended with %d", code)
	}
	if log := process.Log(); strings.Contains(log, "canary") || strings.Contains(log, secret) ||
		!strings.Contains(log, "/v1/connections") {
		t.Errorf("the log is %s", log)
	}
	for _, tc := range []struct{ name, value, want string }{
		{"CONNECTION_PUBLIC_KEY", "", "CONNECTION_PUBLIC_KEY is empty"},
		{"CONNECTION_PUBLIC_KEY", testkit.ConnectionPrivateKey, "CONNECTION_PUBLIC_KEY does not begin"},
		{
			"CONNECTION_CLOUDS", "https://a.example/v3,keystone",
			"CONNECTION_CLOUDS must be a list of Keystone URLs without credentials, such as https://keystone.example.com/v3",
		},
		{"CONNECTION_CLOUDS", "https://u:canary@a.example/v3", "entry 1"},
		{"CONNECTION_CLOUDS", "ftp://a.example/v3", "entry 1"},
	} {
		wrong := testkit.Env(t, env["DATABASE_URL"], map[string]string{"FUNCTION_TARGET": "connections", tc.name: tc.value})
		code, out := testkit.Run(t, wrong)
		if code != 1 || !strings.Contains(out, tc.want) || strings.Count(out, "\n") != 1 ||
			strings.Contains(out, "canary") || strings.Contains(out, "sealkey_o") {
			t.Errorf("%s=%s: %d %s", tc.name, tc.value, code, out)
		}
	}
}

// TestConnectionOfLease: what was made for a lease, or for declared resources, is listed on request only, and can only
// be read.
func TestConnectionOfLease(t *testing.T) {
	t.Parallel()
	app, conn, _, _ := started(t, nil)
	p := testkit.BorrowProject(t)
	owner := app.As(p.Token(t))
	c, lease := create(t, owner, asking("trust", "")), uuid.New()
	if _, err := conn.Exec(t.Context(), "update connections set lease_id = $1", lease); err != nil {
		t.Fatal(err)
	}
	mine, declared := create(t, owner, asking("trust", "")), create(t, owner, asking("trust", ""))
	_, err := conn.Exec(t.Context(), "update connections set managed = true where id = $1", declared.ID)
	if err != nil {
		t.Fatal(err)
	}
	for query, want := range map[string][]uuid.UUID{
		"": {mine.ID}, "?usable=true": {mine.ID}, "?status=active": {mine.ID}, "?of=lease": {c.ID},
		"?of=managed": {declared.ID}, "?of=managed,lease&status=active": {c.ID, declared.ID},
		"?of=managed&status=lost": {},
	} {
		var page ConnectionPage
		owner.Get(t, "/v1/connections"+query).JSON(t, &page)
		got := []uuid.UUID{}
		for _, one := range page.Connections {
			isLeased := one.LeaseID == lease
			if got = append(got, one.ID); one.Managed != (one.ID == declared.ID) || isLeased != (one.ID == c.ID) {
				t.Errorf("shown as %+v", one)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q: got %v, want %v", query, got, want)
		}
	}
	for _, query := range []string{"?of=leases", "?of=lease&usable=true"} {
		if a := owner.Get(t, "/v1/connections"+query); a.Status != 400 || !strings.Contains(string(a.Body), `"of`) {
			t.Errorf("%s: got %d %s", query, a.Status, a.Body)
		}
	}
	for id, of := range map[uuid.UUID]string{c.ID: "of lease " + lease.String(), declared.ID: "of declared resources"} {
		canOnlyBeRead(t, owner, id, of)
	}
}

func canOnlyBeRead(t *testing.T, owner *testkit.Client, id uuid.UUID, of string) {
	t.Helper()
	path := "/v1/connections/" + id.String()
	if a := owner.Get(t, path); a.Status != http.StatusOK {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	for _, request := range [][]string{
		{"DELETE", path, ""},
		{"PATCH", path, `{"name": "mine"}`},
		{"POST", path + "/suspend", ""},
		{"POST", path + "/resume", ""},
	} {
		a := owner.Do(t, request[0], request[1], request[2], "Content-Type", "application/json")
		if a.Status != http.StatusConflict || !strings.Contains(string(a.Body), of) {
			t.Errorf("%s %s: got %d %s", request[0], request[1], a.Status, a.Body)
		}
	}
}

// TestConnectionThatLeasesName stays as long and as wide as their open leases need it.
func TestConnectionThatLeasesName(t *testing.T) {
	t.Parallel()
	app, conn, _, _ := started(t, nil)
	p := testkit.BorrowProject(t)
	owner, end := app.As(p.Token(t)), time.Now().Add(4*time.Hour)
	c := create(t, owner, fmt.Sprintf(
		`{"kind": "trust", "actions": ["start", "stop", "shelve", "reboot"], "expires_at": %q}`,
		end.UTC().Format(time.RFC3339)))
	leases := []uuid.UUID{uuid.Must(uuid.NewV7()), uuid.Must(uuid.NewV7())}
	for n, status := range []string{"active", "ended"} {
		_, err := conn.Exec(t.Context(), `
insert into leases (project_id, id, domain_id, user_id, name, status, starts_at, ends_at, on_end, connection_id,
    shares_connection)
values ($1, $2, 'd', 'u', 'workshop', $3, now(), now() + interval '2 h', 'shelve', $4, true)`,
			p.ID, leases[n], status, c.ID)
		if err != nil {
			t.Fatal(err)
		}
	}
	path := "/v1/connections/" + c.ID.String()
	until := func(d time.Duration) string {
		return fmt.Sprintf(`{"expires_at": %q}`, time.Now().Add(d).UTC().Format(time.RFC3339))
	}
	for _, request := range []struct {
		method, body string
		want         int
	}{
		{"DELETE", "", 409},
		{"PATCH", `{"actions": ["start", "stop"]}`, 409},
		{"PATCH", until(time.Hour), 409},
		{"PATCH", `{"idle_timeout": "1h"}`, 409},
		{"PATCH", `{"name": "mine"}`, 200},
		{"PATCH", `{"actions": ["start", "stop", "shelve"]}`, 200}, // which the lease does without
		{"PATCH", until(3 * time.Hour), 200},
		{"POST", "", 200},
	} {
		path := path
		if request.method == "POST" {
			path += "/suspend"
		}
		a := owner.Do(t, request.method, path, request.body, "Content-Type", "application/json")
		says := string(a.Body)
		if a.Status != request.want || request.want == 409 &&
			(!strings.Contains(says, leases[0].String()) || strings.Contains(says, leases[1].String())) {
			t.Errorf("%s %s: got %d %s", request.method, request.body, a.Status, says)
		}
	}
	if _, err := conn.Exec(t.Context(), "update leases set status = 'ended'"); err != nil {
		t.Fatal(err)
	}
	if a := owner.Do(t, "DELETE", path, ""); a.Status != 204 {
		t.Errorf("when they have ended: got %d %s", a.Status, a.Body)
	}
}
