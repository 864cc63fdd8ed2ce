package servers

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestActionsOnATrackedServer are possible by either of its ids. Each change is an event immediately.
func TestActionsOnATrackedServer(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	server := p.Boot(t, "life", 1)[0].ID
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	wakes, woken := waker(t)
	app := testkit.Start(t, testkit.Env(t, database, map[string]string{"WAKE_URL": wakes}), Function).As(p.Token(t))
	id := track(t, conn, p, server, domain.InstanceActive)

	var shown domain.Server
	app.Get(t, "/v1/servers/"+strings.ToUpper(id)).JSON(t, &shown)
	if i := shown.Instance; shown.ID != server || i == nil || i.ID.String() != id || i.State != domain.InstanceActive {
		t.Errorf("by its instance's id it is %+v", shown)
	}
	if a := sendAction(t, app, id, "start"); !a.isIdle(domain.InstanceActive) {
		t.Errorf("start while active: %+v", a)
	}
	if len(woken()) != 0 {
		t.Errorf("without a change, woken were %v", woken())
	}
	if a := sendAction(t, app, id, "reboot"); !a.isAccepted(domain.InstanceRebooting) {
		t.Errorf("reboot: %+v", a)
	}
	p.Await(t, server, "ACTIVE")
	if a := sendAction(t, app, server, "hard"); !a.isAccepted(domain.InstanceRebooting) {
		t.Errorf("hard reboot: %+v", a)
	}
	p.Await(t, server, "ACTIVE")
	if a := sendAction(t, app, id, "stop"); !a.isAccepted(domain.InstanceUpdating) {
		t.Errorf("stop: %+v", a)
	}
	if a := sendAction(t, app, id, "stop"); !a.isIdle(domain.InstanceUpdating, domain.InstanceStopped) {
		t.Errorf("stop while being stopped: %+v", a)
	}
	p.Await(t, server, "SHUTOFF")
	if a := sendAction(t, app, id, "stop"); !a.isIdle(domain.InstanceStopped) {
		t.Errorf("stop while stopped: %+v", a)
	}
	a := sendAction(t, app, id, "reboot")
	if !a.isRejected(domain.InstanceStopped) || a.Errors[1].Field != "hard" {
		t.Errorf("soft reboot while stopped: %+v", a)
	}
	if a := sendAction(t, app, id, "start"); !a.isAccepted(domain.InstanceUpdating) {
		t.Errorf("start: %+v", a)
	}
	if a := sendAction(t, app, id, "start"); !a.isIdle(domain.InstanceUpdating, domain.InstanceActive) {
		t.Errorf("start while being started: %+v", a)
	}
	p.Await(t, server, "ACTIVE")
	if a := sendAction(t, app, id, "delete"); !a.isAccepted(domain.InstanceDeleting) {
		t.Errorf("delete: %+v", a)
	}
	for _, when := range []string{"being deleted", "gone"} {
		if a := sendAction(t, app, id, "delete"); !a.isIdle(domain.InstanceDeleting, domain.InstanceDeleted) {
			t.Errorf("delete while %s: %+v", when, a)
		}
		if a := app.Do(t, http.MethodDelete, "/v1/servers/"+id, ""); a.Status != 204 || len(a.Body) != 0 {
			t.Errorf("DELETE while %s: %d %s", when, a.Status, a.Body)
		}
		p.Await(t, server, "DELETED")
	}

	rows, _ := conn.Query(t.Context(), `
select seq || ' ' || (data->>'previous_state') || ' ' || (data->>'state') || ' ' || (data->>'status')
from events where project_id = $1 and subject = $2 order by seq`, p.ID, id)
	events, err := pgx.CollectRows(rows, pgx.RowTo[string])
	want := []string{
		"1 active rebooting ACTIVE", "2 rebooting updating ACTIVE", "3 updating updating SHUTOFF",
		"4 updating deleting ACTIVE",
	}
	if err != nil || !slices.Equal(events, want) {
		t.Errorf("the events are %q %v, want %q", events, err, want)
	}
	testkit.Eventually(t, 10*time.Second, "both functions are woken", func() bool {
		return slices.Contains(woken(), "/deliver-events") && slices.Contains(woken(), "/poll-instances")
	})
}

// TestActionTakesTwoRequests of Nova, and succeeds although Postgres rejects the new state.
func TestActionTakesTwoRequests(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	server := p.Boot(t, "two", 1)[0].ID
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	id := track(t, conn, p, server, domain.InstanceActive)
	nova, calls := testkit.Intercept(t, testkit.Compute(t, testkit.Login(t, "admin")).Endpoint, func(*http.Request) {})
	env := testkit.RedirectTo(t, map[string]string{"compute": nova}).Env(t, "demo")
	app := testkit.Start(t, testkit.Env(t, database, env), Function).As(p.Token(t))
	app.Get(t, "/v1/servers/"+id) // fills the caches
	_, err := conn.Exec(t.Context(), `
create function fail() returns trigger language plpgsql as $$ begin raise 'no'; end $$;
create trigger fail before update on instances for each row execute function fail()`)
	if err != nil {
		t.Fatal(err)
	}
	before := calls.Load()
	if a := sendAction(t, app, id, "stop"); !a.isAccepted(domain.InstanceUpdating) {
		t.Errorf("stop: %+v", a)
	}
	if n := calls.Load() - before; n != 2 {
		t.Errorf("it took %d requests", n)
	}
	p.Await(t, server, "SHUTOFF")
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from events"); n != 0 {
		t.Errorf("there are %d events although nothing was stored", n)
	}
}

func TestActionRejectsBadRequests(t *testing.T) {
	t.Parallel()
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function).As(testkit.Token(t, "demo"))
	id := uuid.NewString()
	one, many := "/v1/servers/"+id+"/actions", "/v1/servers/actions"
	for _, tc := range []struct{ path, body, field string }{
		{one, `{}`, "action"},
		{one, `{"action":""}`, "action"},
		{one, `{"action":"Start"}`, "action"},
		{one, `{"action":"evacuate"}`, "action"},
		{one, `{"action":"resize"}`, "flavor"},
		{one, `{"action":"confirm_resize","flavor":"x"}`, "flavor"},
		{one, `{"action":"rebuild","image":"x"}`, "confirm_rebuild"},
		{one, `{"action":"rescue","image":"🚀"}`, "image"},
		{one, `{"action":"rescue","image":""}`, "image"},
		{one, `{"action":"rebuild","confirm_rebuild":true,"image":"` + strings.Repeat("x", 256) + `"}`, "image"},
		{many, `{"action":"unrescue","image":"x","ids":["` + id + `"]}`, "image"},
		{one, `{"action":"rebuild","confirm_rebuild":true,"server_image":"` + id + `"}`, "server_image"},
		{many, `{"action":"rebuild","ids":["` + id + `"]}`, "action"},
		{many, `{"action":"resize","ids":["` + id + `"]}`, "flavor"},
		{one, `{"action":"shelve","name":"x"}`, "name"},
		{one, `{"action":"snapshot","name":""}`, "name"},
		{one, `{"action":"snapshot","name":"🚀"}`, "name"},
		{one, `{"action":"stop","hard":true}`, "hard"},
		{one, `{"action":"reboot","hard":"true"}`, "hard"},
		{one, `{"action":"reboot","ids":[]}`, "ids"},
		{many, `{"action":"stop"}`, "ids"},
		{many, `{"action":"stop","ids":[]}`, "ids"},
		{many, `{"action":"stop","ids":["x"]}`, "ids[0]"},
		{many, `{"action":"stop","ids":["` + id + `",""]}`, "ids[1]"},
		{many, `{"action":"stop","ids":"` + id + `"}`, "ids"},
		{many, `{"action":7,"ids":["` + id + `"]}`, "action"},
		{many, `{"ids":["` + id + `"]}`, "action"},
		{many, `{"action":"stop","ids":[` + strings.Repeat(`"`+id+`",`, 100) + `"` + id + `"]}`, "ids"},
		{one + "?x=1", `{"action":"stop"}`, "x"},
		{many + "?x=1", `{"action":"stop"}`, "x"},
	} {
		if a := app.Post(t, tc.path, tc.body); a.Status != 400 || !testkit.Names(t, a, tc.field) {
			t.Errorf("%.80s: got %d %s, want 400 that names %s", tc.body, a.Status, a.Body, tc.field)
		}
	}
	for path, want := range map[string]int{"/v1/servers/x/actions": 404, one: 404} {
		if a := app.Post(t, path, `{"action":"stop"}`); a.Status != want {
			t.Errorf("%s: got %d %s, want %d", path, a.Status, a.Body, want)
		}
	}
	if a := app.Do(t, http.MethodDelete, "/v1/servers/"+id+"?x=1", ""); a.Status != 400 {
		t.Errorf("DELETE with a parameter: %d", a.Status)
	}
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
	status, results := many("stop",
		theirs, made[0].ID, instance, absent, made[2].ID, failed, ordered, gone, deleted)
	want("stop", status, results, 202, "not_found ", "updating true", "updating true", "not_found ", "stopped false",
		"conflict ", "conflict ", "not_found ", "conflict ")
	if detail := results[5].Error.Detail; !strings.HasPrefix(detail, "nova: ") { // it never reached a host
		t.Errorf("a server that failed: %s", detail)
	}
	building := ""
	for n := 0; n == 0 || n < 9 && results[0].Error == nil; n++ { // Nova may have built it before it is stopped
		building = p.Create(t, "building")
		status, results = many("stop", building)
	}
	want("stop of a server that is built", status, results, 200, "conflict lock,unlock,rename,delete")
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

// TestLongActionsInEveryState that a client can bring a server into: we reject only what Nova rejects. It accepts the
// others, or rejects them with its own message.
func TestLongActionsInEveryState(t *testing.T) {
	t.Parallel()
	testkit.Heavy(t)
	p := testkit.BorrowProject(t)
	made := p.Boot(t, "state", 7)
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function).As(p.Token(t))
	for i, tc := range []struct {
		status string
		enter  string   // as testkit.Project.Act knows it
		idle   []string // are not tried: there is nothing to do, or Nova would accept it
		locked bool     // Nova rejects all actions
		last   string   // Nova accepts it
		after  domain.InstanceState
		leave  string // the status that it ends in
	}{
		{
			status: "SHELVED_OFFLOADED", enter: "shelve",
			idle: []string{"shelve"}, last: "unshelve", after: domain.InstanceUpdating,
			leave: "ACTIVE",
		},
		{
			status: "PAUSED", enter: "pause", idle: []string{"pause"},
			last: "hard", after: domain.InstanceRebooting, leave: "ACTIVE",
		},
		{
			status: "SUSPENDED", enter: "suspend", idle: []string{"suspend"},
			last: "hard", after: domain.InstanceRebooting, leave: "ACTIVE",
		},
		{
			status: "ERROR", enter: "break",
			idle: []string{"hard"}, last: "stop",
			after: domain.InstanceUpdating, leave: "SHUTOFF",
		},
		{
			status: "RESCUE", enter: "rescue",
			last: "delete", after: domain.InstanceDeleting, leave: "DELETED",
		},
		{
			status: "VERIFY_RESIZE", enter: "resize",
			last: "delete", after: domain.InstanceDeleting, leave: "DELETED",
		},
		{
			status: "ACTIVE", enter: "lock",
			locked: true, idle: []string{"start", "unshelve", "snapshot", "unpause", "resume"},
		},
	} {
		t.Run(tc.status, func(t *testing.T) {
			id := made[i].ID
			if status := p.Act(t, id, tc.enter); status != http.StatusAccepted {
				t.Fatalf("%s: Nova answers %d", tc.enter, status)
			}
			p.Await(t, id, tc.status)
			state := domain.StateOf(tc.status, "")
			for _, action := range []string{
				"start", "stop", "reboot", "hard", "pause", "unpause", "suspend", "resume", "shelve", "unshelve",
				"snapshot",
			} {
				// a reboot may have to be hard
				isAllowed := slices.Contains(domain.AllowedActions(state), action) && action != "reboot"
				if isAllowed || action == tc.last || slices.Contains(tc.idle, action) {
					continue
				}
				if status := p.Act(t, id, action); status != http.StatusConflict {
					t.Errorf("%s: Nova answers %d", action, status)
				}
				a := sendAction(t, app, id, action)
				words := a.status == 409 && strings.HasPrefix(a.Detail, "nova: ") && len(a.Errors) == 0
				if tc.locked && !words || !tc.locked && !a.isRejected(state) {
					t.Errorf("%s: %+v", action, a)
				}
			}
			if tc.locked {
				a := app.Do(t, http.MethodDelete, "/v1/servers/"+id, "")
				if a.Status != 409 || !strings.Contains(string(a.Body), "is locked") {
					t.Errorf("DELETE: %d %s", a.Status, a.Body)
				}
				return
			}
			if a := sendAction(t, app, id, tc.last); !a.isAccepted(tc.after) {
				t.Errorf("%s: %+v", tc.last, a)
			}
			p.Await(t, id, tc.leave)
		})
	}
}
