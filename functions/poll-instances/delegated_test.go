package pollinstances

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// connected makes a connection, through which the project's order was placed.
func (w *world) connected(t *testing.T) uuid.UUID {
	t.Helper()
	db, err := postgres.Open(postgres.Config{URL: domain.Secret(w.database), MaxConns: 1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	connection, err := postgres.Connections{DB: db}.Create(t.Context(), domain.Connection{
		ID: uuid.Must(uuid.NewV7()), ProjectID: w.ID, DomainID: w.DomainID, UserID: w.UserID,
		Kind: domain.TrustConnection, DelegationID: "t",
		Actions: []domain.Permission{domain.MayAllocate}, UsableBy: []string{}, Flavors: []domain.Flavor{},
		ExpiresAt: time.Now().Add(time.Hour),
	})
	if err != nil {
		t.Fatal(err)
	}
	id := connection.ID.String()
	w.exec(t, "update orders set connection_id = '"+id+"'")
	w.exec(t, "update instances set state = 'building', raw_status = 'BUILD', connection_id = '"+id+"'")
	return connection.ID
}

// rows are the instances besides the order's, as they are stored.
func (w *world) rows(t *testing.T) []string {
	t.Helper()
	rows, _ := testkit.Pool(t, w.database).Query(context.Background(),
		"select i::text from instances i where order_id is null order by id")
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestLongRemoteInstancesAreSkipped: instances in another cloud and disconnected ones stay as they are. A disconnected
// instance of a connection still changes its state, but no event reports it. An order through a connection stays
// running: run-connections finalizes it.
func TestLongRemoteInstancesAreSkipped(t *testing.T) {
	t.Parallel()
	w := launched(t, 2)
	connection := w.connected(t)
	// Servers that this cloud's Nova does not know.
	w.exec(t, `insert into instances (project_id, id, position, name, state, raw_status, origin, server_id,
  connection_id, remote, disconnected_at, created_at)
		select '`+w.ID+`', gen_random_uuid(), 0, 'x', state, 'X', 'launched', gen_random_uuid()::text, connection, remote, gone, now() - interval '1 hour'
		from (values ('building', '`+connection.String()+`'::uuid, true, null::timestamptz),
			('unknown', '`+connection.String()+`', true, null),
			('building', null, false, now()),
			('active', '`+connection.String()+`', true, now())) x (state, connection, remote, gone)`)
	w.exec(t, "update instances set disconnected_at = now() where id = '"+w.instances[0]+"'")
	testkit.OpenStack(t, "admin", "server", "delete", "--wait", w.servers[0])
	skipped, reported := w.rows(t), w.states(t, w.instances[0])
	p := w.poller(t, nil)
	for range 2 { // the second reads all servers
		tick(t, p, 204)
		w.exec(t, "update polls set full_at = full_at - interval '1 hour'")
	}
	if diff := cmp.Diff(skipped, w.rows(t)); len(skipped) != 4 || diff != "" {
		t.Error(diff)
	}
	conn := testkit.Connect(t, w.database)
	if state := testkit.Scalar[string](t, conn, "select state from instances where id = $1",
		w.instances[0]); state != "deleted" || w.states(t, w.instances[0]) != reported {
		t.Errorf("the disconnected instance is %s, and its events report %q", state, w.states(t, w.instances[0]))
	}
	w.ends(t, w.instances[1], "active/ACTIVE")
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from events where subject = $1 and connection_id = $2",
		w.instances[1], connection); n != 1 {
		t.Errorf("%d events of the instance are the connection's", n)
	}
	if status := testkit.Scalar[string](t, conn, "select status from orders"); status != "running" {
		t.Errorf("the order through a connection is %s", status)
	}
	w.exec(t, "update orders set connection_id = null")
	tick(t, p, 204)
	if status := testkit.Scalar[string](t, conn, "select status from orders"); status != "done" {
		t.Errorf("an order of its caller's own is %s", status)
	}
}
