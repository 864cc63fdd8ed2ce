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

// linked is the answer to POST /v1/servers.
type linked struct {
	ID           uuid.UUID
	ServerID     string `json:"server_id"`
	State        domain.InstanceState
	Origin       string
	ConnectionID *uuid.UUID `json:"connection_id"`
	ActionID     *uuid.UUID `json:"action_id"`
}

func link(t *testing.T, app *testkit.Client, body string, args ...any) (int, linked) {
	t.Helper()
	a := app.Post(t, "/v1/servers", fmt.Sprintf(body, args...))
	var out linked
	a.JSON(t, &out)
	if a.Status < 300 && a.Status != 202 && a.Header.Get("Location") != "/v1/servers/"+out.ServerID {
		t.Errorf("the location is %q", a.Header.Get("Location"))
	}
	return a.Status, out
}

// TestConnectAndDisconnect and reconnect a server that somebody else made. Only force deletes it.
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
