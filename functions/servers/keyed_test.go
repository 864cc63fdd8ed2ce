package servers

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// logged counts the entries of a name in Nova's action log of a server.
func logged(t *testing.T, server, name string) (n int) {
	t.Helper()
	actions, err := testkit.Session(t, "admin").Actions(t.Context(), server)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range actions {
		if a.Name == name {
			n++
		}
	}
	return n
}

// killed makes the actions look as if their replica had been killed after Nova's answer, and its claim were over.
func killed(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	_, err := conn.Exec(t.Context(), "update keyed_actions set result = null, claim_id = gen_random_uuid(), claimed_until = clock_timestamp()")
	if err != nil {
		t.Fatal(err)
	}
}

// TestRebootSentAgain: with the same id Nova is asked once, however often and by how many at once it is sent, also when nobody recorded
// what came of it.
func TestRebootSentAgain(t *testing.T) {
	t.Parallel()
	p := testkit.NewProject(t)
	servers := p.Boot(t, "again", 2)
	server, other := servers[0].ID, servers[1].ID
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	app := testkit.Start(t, testkit.Env(t, database, nil), Function).As(p.Token(t))
	path, body := "/v1/servers/"+server+"/actions", fmt.Sprintf(`{"id":"%s","action":"reboot","hard":true}`, uuid.New())
	var all sync.WaitGroup
	var mu sync.Mutex
	statuses := map[int]int{}
	for range 4 {
		all.Go(func() {
			a := app.Post(t, path, body)
			if a.Status == 409 && a.Header.Get("Retry-After") == "" {
				t.Errorf("at once: %d %s", a.Status, a.Body)
			}
			mu.Lock()
			defer mu.Unlock()
			statuses[a.Status]++
		})
	}
	all.Wait()
	if statuses[202] != 1 || statuses[202]+statuses[200]+statuses[409] != 4 {
		t.Errorf("at once: %v", statuses)
	}
	p.Await(t, server, "ACTIVE")
	same := func(when string) {
		t.Helper()
		a := app.Post(t, path, strings.Replace(body, `"hard":true`, `"hard" : true`, 1))
		var done told
		if a.JSON(t, &done); a.Status != 200 || !done.Changed || done.State != domain.InstanceRebooting {
			t.Errorf("sent again %s: %d %s", when, a.Status, a.Body)
		}
	}
	same("when it is done")
	killed(t, conn)
	same("when its replica was killed")
	same("after that")
	for what, refused := range map[string]testkit.Answer{
		"another body":   app.Post(t, path, strings.Replace(body, "true", "false", 1)),
		"another action": app.Post(t, path, strings.Replace(body, `"reboot","hard":true`, `"stop"`, 1)),
		"another server": app.Post(t, "/v1/servers/"+other+"/actions", body),
	} {
		if refused.Status != 409 || !strings.Contains(string(refused.Body), "another action's") {
			t.Errorf("%s: %d %s", what, refused.Status, refused.Body)
		}
	}
	if n := logged(t, server, "reboot"); n != 1 {
		t.Errorf("Nova has rebooted it %d times", n)
	}
	if n := logged(t, other, "reboot"); n != 0 {
		t.Errorf("Nova has rebooted another one %d times", n)
	}
}

// TestRefusedAndSentAgain: nothing was done, so the same request may be sent when the state allows it.
func TestRefusedAndSentAgain(t *testing.T) {
	t.Parallel()
	p := testkit.NewProject(t)
	server := p.Boot(t, "refused", 1)[0].ID
	p.Stop(t, server)
	database := testkit.Database(t)
	var lose, lost bool
	env := before(t, func(w http.ResponseWriter, _ *http.Request, body []byte) bool {
		if lose && !lost && strings.Contains(string(body), "reboot") {
			lost = true
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		}
		return false
	}, nil)
	conn := testkit.Connect(t, database)
	app := testkit.Start(t, testkit.Env(t, database, env), Function).As(p.Token(t))
	path, body := "/v1/servers/"+server+"/actions", fmt.Sprintf(`{"id":"%s","action":"reboot"}`, uuid.New())
	if a := app.Post(t, path, body); a.Status != 409 || !strings.Contains(string(a.Body), "does not allow the action reboot") {
		t.Errorf("while it is stopped: %d %s", a.Status, a.Body)
	}
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from keyed_actions"); n != 0 {
		t.Errorf("%d actions are stored that were refused", n)
	}
	p.Start(t, server)
	lose = true
	if a := app.Post(t, path, body); a.Status < 500 {
		t.Errorf("while Nova is away: %d %s", a.Status, a.Body)
	}
	if _, err := conn.Exec(t.Context(), "update keyed_actions set claimed_until = clock_timestamp()"); err != nil { // instead of waiting
		t.Fatal(err)
	}
	if a := app.Post(t, path, body); a.Status != 202 {
		t.Errorf("after that: %d %s", a.Status, a.Body)
	}
	if n := logged(t, server, "reboot"); n != 1 {
		t.Errorf("Nova has rebooted it %d times", n)
	}
}

// TestDeploySentAgain: the disk is made anew once for an id, also when its replica was killed after Nova had accepted the rebuild.
func TestDeploySentAgain(t *testing.T) {
	t.Parallel()
	testkit.Heavy(t)
	p := testkit.NewProject(t)
	server := p.Boot(t, "agent", 1)[0].ID
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	app := testkit.Start(t, testkit.Env(t, database, map[string]string{"REQUEST_TIMEOUT": "4m"}), Function).As(p.Token(t))
	track(t, conn, p, server, domain.InstanceActive)
	path := "/v1/servers/" + server + "/actions"
	body := strings.Replace(fmt.Sprintf(roll, "1"), "{", fmt.Sprintf(`{"id":"%s",`, uuid.New()), 1)
	if a := app.Post(t, path, body); a.Status != 202 {
		t.Fatalf("deploy: %d %s", a.Status, a.Body)
	}
	same := func(when string) {
		t.Helper()
		a := app.Post(t, path, body)
		var done told
		if a.JSON(t, &done); a.Status != 200 || !done.Changed || done.State != domain.InstanceUpdating {
			t.Errorf("sent again %s: %d %s", when, a.Status, a.Body)
		}
	}
	same("at once")
	p.Await(t, server, "ACTIVE")
	same("when it is done")
	killed(t, conn)
	same("when its replica was killed")
	for _, secret := range []string{"canary-env", "canary-join"} {
		if a := app.Post(t, path, strings.Replace(body, secret, secret+"2", 1)); a.Status != 409 || !strings.Contains(string(a.Body), "another action's") {
			t.Errorf("with another %s: %d %s", secret, a.Status, a.Body)
		}
	}
	if n := logged(t, server, "rebuild"); n != 1 {
		t.Errorf("Nova has rebuilt it %d times", n)
	}
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from deployments"); n != 1 {
		t.Errorf("there are %d deployments", n)
	}
	if dump := testkit.Dump(t, database); strings.Contains(dump, "canary") {
		t.Error("the database holds a secret in clear")
	}
}

// TestSentAgainThroughAConnection is the same action, while it waits and when it has ended; the deployment is not replaced.
func TestSentAgainThroughAConnection(t *testing.T) {
	t.Parallel()
	l := lend(t, nil)
	id, server := l.instance(t, domain.InstanceActive, domain.OriginLaunched)
	other, _ := l.instance(t, domain.InstanceActive, domain.OriginLaunched)
	for verb, more := range map[string]string{"deploy": `,"image":"registry.example.com/agent:7","join_token":"canary-join","confirm_rebuild":true`, "reboot": ``, "delete": ``} {
		key := uuid.New()
		body := `{"id":"` + key.String() + `","action":"` + verb + `","connection_id":%q` + more + `}`
		var all sync.WaitGroup
		var mu sync.Mutex
		statuses := map[string]int{}
		for n := range 4 {
			all.Go(func() {
				a, action := l.act(t, []string{id, server}[n%2], body)
				mu.Lock()
				defer mu.Unlock()
				statuses[fmt.Sprint(a.Status, action)]++
			})
		}
		all.Wait()
		if statuses["202"+key.String()] != 1 || statuses["200"+key.String()] != 3 {
			t.Errorf("%s at once: %v", verb, statuses)
		}
		for _, sql := range []string{"update actions set status = 'done', payload = null", "update instances set state = 'deleted' where '" + verb + "' = 'delete'"} {
			if _, err := l.conn.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
			if a, action := l.act(t, id, body); a.Status != 200 || action != key.String() {
				t.Errorf("%s when it has ended: %d %s", verb, a.Status, a.Body)
			}
		}
		if n := testkit.Scalar[int](t, l.conn, "select count(*)::int from actions where verb = $1", verb); n != 1 {
			t.Errorf("there are %d actions to %s", n, verb)
		}
		for what, a := range map[string]func() (testkit.Answer, string){
			"another server": func() (testkit.Answer, string) { return l.act(t, other, body) },
			"another action": func() (testkit.Answer, string) {
				return l.act(t, id, `{"id":"`+key.String()+`","action":"stop","connection_id":%q}`)
			},
		} {
			if a, _ := a(); a.Status != 409 || !strings.Contains(string(a.Body), "another action's") {
				t.Errorf("%s, %s: %d %s", verb, what, a.Status, a.Body)
			}
		}
		if _, err := l.conn.Exec(t.Context(), "update instances set state = 'active'"); err != nil {
			t.Fatal(err)
		}
	}
	if n := testkit.Scalar[int](t, l.conn, "select count(*)::int from deployments"); n != 1 {
		t.Errorf("there are %d deployments", n)
	}
	if a, _ := l.act(t, id, `{"id":"`+other+`","action":"stop","connection_id":%q}`); a.Status != 409 || !testkit.Names(t, a, "id") {
		t.Errorf("an instance's id: %d %s", a.Status, a.Body)
	}
	events := testkit.Scalar[int](t, l.conn, "select count(*)::int from events where type = $1", domain.ActionEvent)
	if events != 3 {
		t.Errorf("%d events report three actions", events)
	}
}

// TestIDsOfActions that are none, and where they do not go.
func TestIDsOfActions(t *testing.T) {
	t.Parallel()
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function).As(testkit.Token(t, "demo"))
	path := "/v1/servers/" + uuid.NewString() + "/actions"
	for _, id := range []string{`"x"`, `""`, `7`, `"` + uuid.Nil.String() + `"`, `"{` + uuid.NewString() + `}"`} {
		if a := app.Post(t, path, `{"action":"stop","id":`+id+`}`); a.Status != 400 || !testkit.Names(t, a, "id") {
			t.Errorf("%s: %d %s", id, a.Status, a.Body)
		}
	}
	many := app.Post(t, "/v1/servers/actions", `{"action":"stop","id":"`+uuid.NewString()+`","ids":["`+uuid.NewString()+`"]}`)
	if many.Status != 400 || !testkit.Names(t, many, "id") {
		t.Errorf("of many: %d %s", many.Status, many.Body)
	}
	for range 2 { // nothing of a server that is absent is stored
		if a := app.Post(t, path, `{"action":"stop","id":"`+uuid.NewString()+`"}`); a.Status != 404 {
			t.Errorf("of an unknown server: %d %s", a.Status, a.Body)
		}
	}
}
