package servers

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// actionAnswer is the answer to an action.
type actionAnswer struct {
	status  int
	State   domain.InstanceState
	Changed bool
	Detail  string
	ImageID string `json:"image_id"`
	Errors  []struct {
		Field   string
		Allowed []string
	}
}

func sendAction(t *testing.T, app *testkit.Client, id, action string) (out actionAnswer) {
	t.Helper()
	body := fmt.Sprintf(`{"action":%q}`, action)
	if action == "hard" {
		body = `{"action":"reboot","hard":true}`
	}
	a := app.Post(t, "/v1/servers/"+id+"/actions", body)
	a.JSON(t, &out)
	out.status = a.Status
	return out
}

// isAccepted reports whether Nova accepted the action.
func (a actionAnswer) isAccepted(state domain.InstanceState) bool {
	return a.status == 202 && a.Changed && a.State == state
}

// isIdle reports whether there was nothing to do.
func (a actionAnswer) isIdle(states ...domain.InstanceState) bool {
	return a.status == 200 && !a.Changed && slices.Contains(states, a.State)
}

// isRejected reports whether the state did not allow the action, with the actions that it allows.
func (a actionAnswer) isRejected(allowed ...string) bool {
	return a.status == 409 && len(a.Errors) > 0 && a.Errors[0].Field == "action" &&
		slices.Equal(a.Errors[0].Allowed, allowed)
}

// track stores the instance of a server; "" = one without a server yet.
func track(t *testing.T, conn *pgx.Conn, p *testkit.Project, serverID string, state domain.InstanceState) string {
	t.Helper()
	id := uuid.NewString()
	_, err := conn.Exec(context.Background(), `
insert into instances (project_id, id, position, name, server_id, state, origin)
values ($1, $2, 0, 'x', nullif($3, ''), $4, 'launched')`, p.ID, id, serverID, state)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// TestActionsOnATrackedServer are possible by either of its ids. Each change is an event at once.
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
	if !a.isRejected("start", "reboot", "shelve", "snapshot", "deploy", "delete") || a.Errors[1].Field != "hard" {
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

// waker is a server in place of the event functions, which records the paths of their wake events.
func waker(t *testing.T) (wakeURL string, woken func() []string) {
	t.Helper()
	var mu sync.Mutex
	var paths []string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		paths = append(paths, r.URL.Path)
	}))
	t.Cleanup(server.Close)
	return server.URL + "/{function}", func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(paths)
	}
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
		{one, `{"action":"resize"}`, "action"},
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
