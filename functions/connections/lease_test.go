package connections

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

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
	stranger := app.As(testkit.BorrowProject(t).Token(t))
	if a := stranger.Get(t, "/v1/connections/"+c.ID.String()); a.Status != http.StatusNotFound {
		t.Errorf("another project: %d %s", a.Status, a.Body)
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
