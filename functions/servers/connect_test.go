package servers

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestConnectAndDisconnect and reconnect a server that someone else made. Only force deletes it.
func TestConnectAndDisconnect(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	server := p.Boot(t, "old", 1)[0].ID
	if err := p.Session(t).SetServerMetadata(t.Context(), server, map[string]string{"note": "a\x00b"}, nil); err != nil {
		t.Fatal(err)
	}
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	app := testkit.Start(t, testkit.Env(t, database, nil), Function).As(p.Token(t))
	path := "/v1/servers/" + server

	if a := app.Do(t, http.MethodDelete, path+"?mode=disconnect", ""); a.Status != 404 {
		t.Errorf("before it was ever connected: %d %s", a.Status, a.Body)
	}
	id := uuid.New()
	status, made := link(t, app, `{"server_id":%q,"id":%q}`, strings.ToUpper(server), id)
	if status != 201 || made.ID != id || made.ServerID != server || made.Origin != "connected" ||
		made.State != domain.InstanceActive || made.ConnectionID != nil {
		t.Errorf("connected: %d %+v", status, made)
	}
	if note := testkit.Scalar[string](t, conn, "select spec->'metadata'->>'note' from instances"); note != "a\uFFFDb" {
		t.Errorf("the stored metadata is %q", note)
	}
	if status, again := link(t, app, `{"server_id":%q}`, server); status != 200 || again != made {
		t.Errorf("repeated: %d %+v", status, again)
	}
	otherID := func(when string) {
		t.Helper()
		a := app.Post(t, "/v1/servers", fmt.Sprintf(`{"server_id":%q,"id":"%s"}`, server, uuid.New()))
		if a.Status != 409 || !testkit.Names(t, a, "id") || !strings.Contains(string(a.Body), id.String()) {
			t.Errorf("under another id %s: %d %s", when, a.Status, a.Body)
		}
	}
	otherID("while it is managed")
	if status, _ := link(t, app, `{"server_id":%q}`, uuid.NewString()); status != 404 {
		t.Errorf("an unknown server: %d", status)
	}
	var shown domain.Server
	app.Get(t, "/v1/servers/"+id.String()).JSON(t, &shown)
	if shown.ID != server || shown.Instance == nil || shown.Instance.Origin != "connected" ||
		shown.Instance.Agent != nil {
		t.Errorf("it is shown as %+v", shown)
	}
	for _, a := range []testkit.Answer{
		app.Do(t, http.MethodDelete, path, ""), app.Post(t, path+"/actions", `{"action":"delete"}`),
		app.Do(t, http.MethodDelete, path+"?mode=deallocate&force=false", ""),
	} {
		if a.Status != 409 || !testkit.Names(t, a, "force") {
			t.Errorf("deleted without force: %d %s", a.Status, a.Body)
		}
	}
	for _, which := range []string{server, id.String(), server} { // twice when it is disconnected already
		a := app.Do(t, http.MethodDelete, "/v1/servers/"+which+"?mode=disconnect", "")
		if a.Status != 204 || len(a.Body) != 0 {
			t.Errorf("disconnect: %d %s", a.Status, a.Body)
		}
	}
	app.Get(t, path).JSON(t, &shown)
	otherID("after it was disconnected")
	if status, again := link(t, app, `{"server_id":%q}`, server); status != 201 || again.ID != id {
		t.Errorf("reconnect: %d %+v", status, again)
	}
	if a := app.Do(t, http.MethodDelete, path+"?force=true", ""); a.Status != 204 {
		t.Errorf("with force: %d %s", a.Status, a.Body)
	}
	p.Await(t, server, "DELETED")
	if a := app.Do(t, http.MethodDelete, "/v1/servers/"+id.String()+"?mode=disconnect", ""); a.Status != 204 {
		t.Errorf("disconnect of a deleted server: %d %s", a.Status, a.Body)
	}
	got := testkit.Scalar[string](t, conn, `
select string_agg(seq || ' ' || (data->>'state') || coalesce(' off:' || (data->>'disconnected'), ''), ', ' order by seq)
from events where subject = $1`, id.String())
	if want := "1 active, 2 active off:true, 3 active, 4 deleting, 5 deleting off:true"; got != want {
		t.Errorf("the events are %q, want %q", got, want)
	}
}

// TestConnectRejects readers, other projects, and servers that are being deleted.
func TestConnectRejects(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	server := p.Boot(t, "mine", 1)[0].ID
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	app := testkit.Start(t, testkit.Env(t, database, nil), Function)
	reader := app.As(p.ReaderToken(t))
	if status, _ := link(t, reader, `{"server_id":%q}`, server); status != 403 {
		t.Errorf("a reader connects: %d", status)
	}
	ours := track(t, conn, p, server, domain.InstanceActive)
	ordered := track(t, conn, p, "", domain.InstanceRequested)
	if a := reader.Do(t, http.MethodDelete, "/v1/servers/"+ours+"?mode=disconnect", ""); a.Status != 403 {
		t.Errorf("a reader disconnects: %d", a.Status)
	}
	for _, other := range []string{"alt", "admin"} { // Nova would show it to an admin
		if status, _ := link(t, app.As(testkit.Token(t, other)), `{"server_id":%q}`, server); status != 404 {
			t.Errorf("%s connects: %d", other, status)
		}
		a := app.As(testkit.Token(t, other)).Do(t, http.MethodDelete, "/v1/servers/"+ours+"?mode=disconnect", "")
		if a.Status != 404 {
			t.Errorf("%s disconnects: %d", other, a.Status)
		}
	}
	member := app.As(p.Token(t))
	if a := member.Do(t, http.MethodDelete, "/v1/servers/"+ordered+"?mode=disconnect", ""); a.Status != 409 {
		t.Errorf("one without a server: %d %s", a.Status, a.Body)
	}
	for body, field := range map[string]string{
		`{}`: "server_id", `{"server_id":"x"}`: "server_id", `{"server_id":"` + server + `","id":"x"}`: "id",
		`{"server_id":"` + server + `","id":"` + uuid.Nil.String() + `"}`: "id",
		`{"server_id":"` + server + `","connection_id":""}`:               "connection_id",
		`{"server_id":"` + server + `","x":1}`:                            "x", `{"server_id":7}`: "server_id",
	} {
		if a := member.Post(t, "/v1/servers", body); a.Status != 400 || !testkit.Names(t, a, field) {
			t.Errorf("%s: got %d %s, want 400 that names %s", body, a.Status, a.Body, field)
		}
	}
	for query, field := range map[string]string{
		"?mode=x": "mode", "?mode=": "mode", "?force=1": "force", "?mode=disconnect&force=true": "force",
		"?connection_id=x": "connection_id", "?connection_id=" + uuid.Nil.String(): "connection_id",
	} {
		a := member.Do(t, http.MethodDelete, "/v1/servers/"+server+query, "")
		if a.Status != 400 || !testkit.Names(t, a, field) {
			t.Errorf("%s: got %d %s, want 400 that names %s", query, a.Status, a.Body, field)
		}
	}
	twin := p.Boot(t, "twin", 1)[0].ID
	a := member.Post(t, "/v1/servers", fmt.Sprintf(`{"server_id":%q,"id":%q}`, twin, ours))
	if a.Status != 409 || !testkit.Names(t, a, "id") {
		t.Errorf("under a taken id: %d %s", a.Status, a.Body)
	}
	p.Drop(t, twin)
	status, _ := link(t, member, `{"server_id":%q}`, twin)
	if !slices.Contains([]int{404, 409}, status) {
		t.Errorf("a server that is being deleted: %d", status)
	}
}

// TestConnectReturnsTheInstanceID of a server with any manager, and rejects another id.
func TestConnectReturnsTheInstanceID(t *testing.T) {
	t.Parallel()
	d := delegate(t, nil)
	taken, _ := d.instance(t, domain.InstanceActive, domain.OriginLaunched)
	for name, tc := range map[string]struct {
		change string // of the server's instance; "" = it has none
		status int
	}{
		"managed through the connection":  {"connection_id = connection_id", 200},
		"managed by its project":          {"connection_id = null", 202},
		"disconnected of the connection":  {"disconnected_at = clock_timestamp()", 202},
		"disconnected of its project":     {"disconnected_at = clock_timestamp(), connection_id = null", 202},
		"of a connection that has ended":  {"connection_id = gen_random_uuid()", 202},
		"never tracked":                   {"", 202},
		"never tracked, with an id given": {"", 202},
	} {
		given := ""
		server := uuid.NewString()
		id := uuid.Nil.String()
		if tc.change != "" {
			id, server = d.instance(t, domain.InstanceActive, domain.OriginConnected)
			if _, err := d.conn.Exec(t.Context(), "update instances set "+tc.change+" where id = $1", id); err != nil {
				t.Fatal(err)
			}
		}
		if strings.Contains(name, "given") {
			id = uuid.NewString()
			given = fmt.Sprintf(`,"id":%q`, id)
		}
		status, first := link(t, d.app, `{"server_id":%q,"connection_id":%q%s}`, server, d.ID, given)
		if status != tc.status || id != uuid.Nil.String() && first.ID.String() != id {
			t.Errorf("%s: %d %+v, want %d and the id %s", name, status, first, tc.status, id)
		}
		// Repeated, also with the id that is known now.
		for _, id := range []string{given, fmt.Sprintf(`,"id":"%s"`, first.ID)} {
			status, again := link(t, d.app, `{"server_id":%q,"connection_id":%q%s}`, server, d.ID, id)
			if status != tc.status || again.ID != first.ID ||
				domain.Deref(again.ActionID) != domain.Deref(first.ActionID) {
				t.Errorf("%s: repeated: %d %+v, first %+v", name, status, again, first)
			}
		}
		for _, other := range []string{uuid.NewString(), taken} {
			a := d.app.Post(t, "/v1/servers", fmt.Sprintf(`{"server_id":%q,"connection_id":%q,"id":%q}`, server, d.ID, other))
			if a.Status != 409 || !testkit.Names(t, a, "id") || !strings.Contains(string(a.Body), first.ID.String()) {
				t.Errorf("%s: with another id: %d %s", name, a.Status, a.Body)
			}
		}
	}
	body := fmt.Sprintf(`{"server_id":%q,"connection_id":%q,"id":%q}`, uuid.NewString(), d.ID, taken)
	a := d.app.Post(t, "/v1/servers", body)
	if a.Status != 409 || !testkit.Names(t, a, "id") {
		t.Errorf("under a taken id: %d %s", a.Status, a.Body)
	}
}

// TestDisconnectLeasedServer is refused with the lease: without its instance the lease could not end the server.
func TestDisconnectLeasedServer(t *testing.T) {
	t.Parallel()
	p, database := testkit.BorrowProject(t), testkit.Database(t)
	conn := testkit.Connect(t, database)
	app := testkit.Start(t, testkit.Env(t, database, nil), Function).As(p.Token(t))
	id, lease := uuid.New(), uuid.New()
	if _, err := conn.Exec(t.Context(), `insert into instances (project_id, id, name, server_id, state, origin, spec,
		seq, position, lease_id) values ($1, $2, 'vm', $3, 'active', 'connected', '{}', 1, 0, $4)`, p.ID, id,
		uuid.NewString(), lease); err != nil {
		t.Fatal(err)
	}
	path := "/v1/servers/" + id.String() + "?mode=disconnect"
	a := app.Do(t, http.MethodDelete, path, "")
	if a.Status != http.StatusConflict || !strings.Contains(string(a.Body), "DELETE /v1/leases/"+lease.String()) {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	if _, err := conn.Exec(t.Context(), "update instances set lease_id = null"); err != nil {
		t.Fatal(err)
	}
	if a := app.Do(t, http.MethodDelete, path, ""); a.Status != http.StatusNoContent {
		t.Errorf("after the lease: %d %s", a.Status, a.Body)
	}
}

// TestReusableMark is set and revoked by users of the server's project only, not by users of the connection.
func TestReusableMark(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	d := delegate(t, nil)
	id, server := d.instance(t, domain.InstanceStopped, domain.OriginConnected)
	mark := func(app *testkit.Client, id, body string) testkit.Answer {
		return app.Do(t, "PATCH", "/v1/servers/"+id, body, "Content-Type", "application/json")
	}
	for _, id := range []string{server, uuid.NewString()} {
		if a := mark(d.app, id, `{"reusable": true}`); a.Status != 404 {
			t.Errorf("by a user of the connection: %d %s", a.Status, a.Body)
		}
	}
	d.exec(t, "update instances set project_id = $1", p.ID)
	mine := d.app.As(p.Token(t))
	for _, tc := range []struct {
		id, body string
		status   int
		says     string
	}{
		{server, `{"reusable": true}`, 200, `"reusable":true`},
		{id, `{"reusable": false}`, 200, `"reusable":false`},
		{id, `{"reusable": true}`, 200, id},
		{id, `{}`, 400, `"name"`},
		{id, `{"reusable": "yes"}`, 400, `"reusable"`},
		{id, `{"reusable": true, "name": "x"}`, 400, `"reusable"`},
		{id, `{"reusable": null}`, 400, `"reusable"`},
		{"x", `{"reusable": true}`, 404, "UUID"},
		{uuid.NewString(), `{"reusable": true}`, 404, "managed through a connection"},
	} {
		a := mark(mine, tc.id, tc.body)
		if a.Status != tc.status || !strings.Contains(string(a.Body), tc.says) {
			t.Errorf("%s %s: got %d %s", tc.id, tc.body, a.Status, a.Body)
		}
	}
	if got := testkit.Scalar[bool](t, d.conn, "select reusable from instances where id = $1::uuid", id); !got {
		t.Error("it is not marked")
	}
	d.exec(t, "update instances set connection_id = null")
	if a := mark(mine, id, `{"reusable": true}`); a.Status != 409 {
		t.Errorf("without a connection: %d %s", a.Status, a.Body)
	}
}
