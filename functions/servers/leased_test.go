package servers

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

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
