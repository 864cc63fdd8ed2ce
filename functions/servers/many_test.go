package servers

import (
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

// result is the result for one of many servers.
type result struct {
	ID      string
	State   domain.InstanceState
	Changed *bool
	Error   *struct {
		Code    string
		Detail  string
		Allowed []string
	}
}

func (r result) String() string {
	if r.Error != nil {
		return r.Error.Code + " " + strings.Join(r.Error.Allowed, ",")
	}
	return fmt.Sprintf("%s %t", r.State, *r.Changed)
}

// TestLongActionOnManyServers has a result for each, in the order of the ids.
func TestLongActionOnManyServers(t *testing.T) {
	t.Parallel()
	testkit.Heavy(t)
	p, other := testkit.BorrowProject(t), testkit.BorrowProject(t)
	made, theirs := p.Boot(t, "many", 4), other.Boot(t, "theirs", 1)[0].ID
	p.Stop(t, made[2].ID)
	p.Fail(t, "fails")
	all := p.Servers(t)
	failed := all[slices.IndexFunc(all, func(s testkit.Server) bool { return s.Status == "ERROR" })].ID
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	app := testkit.Start(t, testkit.Env(t, database, nil), Function).As(p.Token(t))
	instance := track(t, conn, p, made[1].ID, domain.InstanceActive)
	ordered := track(t, conn, p, "", domain.InstanceRequested)
	gone := track(t, conn, p, uuid.NewString(), domain.InstanceActive)
	deleted := track(t, conn, p, uuid.NewString(), domain.InstanceDeleted)
	restored := track(t, conn, p, made[3].ID, domain.InstanceDeleted)
	absent := uuid.NewString()

	many := func(action string, ids ...string) (status int, results []result) {
		t.Helper()
		a := app.Post(t, "/v1/servers/actions", fmt.Sprintf(`{"action":%q,"ids":["%s"]}`, action, strings.Join(ids, `","`)))
		var body struct{ Results []result }
		a.JSON(t, &body)
		for i, r := range body.Results {
			if r.ID != ids[i] {
				t.Errorf("result %d is of %s, want %s", i, r.ID, ids[i])
			}
		}
		return a.Status, body.Results
	}
	want := func(what string, status int, results []result, wantStatus int, want ...string) {
		t.Helper()
		got := make([]string, len(results))
		for i, r := range results {
			got[i] = r.String()
		}
		if status != wantStatus || !slices.Equal(got, want) {
			t.Errorf("%s: got %d %q, want %d %q", what, status, got, wantStatus, want)
		}
	}
	building := p.Create(t, "building")
	status, results := many("stop",
		theirs, made[0].ID, building, instance, absent, made[2].ID, failed, ordered, gone, deleted)
	want("stop", status, results, 202, "not_found ", "updating true", "conflict delete", "updating true", "not_found ",
		"stopped false", "conflict ", "conflict ", "not_found ", "conflict ")
	if detail := results[6].Error.Detail; !strings.HasPrefix(detail, "nova: ") { // it never reached a host
		t.Errorf("a server that failed: %s", detail)
	}
	p.Await(t, made[0].ID, "SHUTOFF")
	p.Await(t, made[1].ID, "SHUTOFF")
	status, results = many("stop", restored, deleted)
	want("stop of a restored server", status, results, 202, "updating true", "conflict ")
	status, results = many("stop", made[0].ID, instance)
	want("repeated stop", status, results, 200, "stopped false", "stopped false")
	status, results = many("delete", theirs, made[0].ID, instance, failed, gone, deleted, absent, ordered)
	want("delete", status, results, 202, "not_found ", "deleting true", "deleting true", "deleting true",
		"deleted false", "deleted false", "not_found ", "conflict ")
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from events where project_id = $1", p.ID); n != 2 {
		t.Errorf("one tracked server was stopped and deleted, and there are %d events", n)
	}
	for id, want := range map[string]int{
		theirs: 404, absent: 404, gone: 204, deleted: 204, ordered: 409, building: 204, "x": 404,
	} {
		if a := app.Do(t, http.MethodDelete, "/v1/servers/"+id, ""); a.Status != want {
			t.Errorf("DELETE %s: %d %s, want %d", id, a.Status, a.Body, want)
		}
	}
	admin := app.As(testkit.Token(t, "admin")) // Nova would do it
	if a := admin.Do(t, http.MethodDelete, "/v1/servers/"+theirs, ""); a.Status != 404 {
		t.Errorf("from another project, by an admin: %d %s", a.Status, a.Body)
	}
	if s := other.Servers(t); len(s) != 1 || s[0].Status != "ACTIVE" {
		t.Errorf("another project's server is %+v", s)
	}
	for ids, field := range map[string]string{
		theirs + `","` + theirs:                        "ids[1]",
		absent + `","` + instance + `","` + made[1].ID: "ids[2]",
		absent + `","` + strings.ToUpper(absent):       "ids[1]",
	} {
		a := app.Post(t, "/v1/servers/actions", `{"action":"delete","ids":["`+ids+`"]}`)
		if a.Status != 400 || !testkit.Names(t, a, field) {
			t.Errorf("%s: got %d %s, want 400 that names %s", ids, a.Status, a.Body, field)
		}
	}
}

// TestErrorsOfManyAreLogged like those of failed requests.
func TestErrorsOfManyAreLogged(t *testing.T) {
	t.Parallel()
	env := testkit.Env(t, testkit.Database(t), map[string]string{"FUNCTION_TARGET": "servers", "OS_CLOUD": "demo"})
	process := testkit.Spawn(t, env)
	absent := uuid.NewString()
	a := process.As(testkit.Token(t, "demo")).Post(t, "/v1/servers/actions", `{"action":"stop","ids":["`+absent+`"]}`)
	if a.Status != 200 {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	process.Terminate(t, 10*time.Second)
	if log := process.Log(); !strings.Contains(log, `"request failed"`) || !strings.Contains(log, absent) {
		t.Errorf("the log is %s", log)
	}
}
