package reconcilemanaged

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/managed"
	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/run"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// renewing is the store, in which somebody renews a trust just after a round has read the connections.
type renewing struct {
	postgres.Managed

	once  sync.Once
	renew func()
}

func (r *renewing) Connections(ctx context.Context, project string) (map[uuid.UUID]*domain.Connection, error) {
	all, err := r.Managed.Connections(ctx, project)
	r.once.Do(r.renew)
	return all, err
}

// round does one round of the world's project. renew renews the trust meanwhile; nil = it stays.
func (w *world) round(t *testing.T, renew func()) {
	t.Helper()
	wake := func(...string) {}
	if renew == nil {
		renew = func() {}
	}
	cloud, err := openstack.New(openstack.Config{Cloud: "collector", ConfigFile: testkit.CloudsYAML(t)},
		openstack.Options{})
	if err != nil {
		t.Fatal(err)
	}
	own, err := cloud.Account(openstack.Config{Cloud: "collector", ConfigFile: testkit.CloudsYAML(t)},
		openstack.Credentials{})
	if err != nil {
		t.Fatal(err)
	}
	trusts := newSessions(func(ctx context.Context) (account, error) {
		session, err := own.Login(ctx)
		return trustee{session}, err
	})
	trusts.lost = connectionLost(postgres.Connections{DB: w.db}, func(...string) {})
	engine := managed.Engine{
		Store: &renewing{Managed: w.store, renew: renew}, Sessions: trusts, Nodes: postgres.Nodes{DB: w.db},
		Drivers: drivers(run.Deps{DB: w.db, Wake: wake}), Wake: wake,
		Unseal: func(domain.Managed) (domain.ManagedSecrets, error) { return domain.ManagedSecrets{Payload: "a"}, nil },
	}
	w.exec(t, "update managed_projects set due_at = clock_timestamp(), scan_at = clock_timestamp()")
	due, err := w.store.Queue().Claim(t.Context(), time.Minute, 1, nil)
	if err != nil || len(due.Rows) != 1 {
		t.Fatalf("claimed %d projects: %v", len(due.Rows), err)
	}
	if err := engine.Run(t.Context(), due.Claim, due.Rows[0].Value); err != nil {
		t.Fatal(err)
	}
}

// TestRenewedTrust: a trust that is revoked while a round works, because another one has replaced it, is not lost,
// whether the connection is the same or another one. One that nobody has renewed is.
func TestRenewedTrust(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.trust(t)
	files := domain.ConfigmapSpec{Data: map[string]string{"a": "b"}}
	w.declare(t, domain.KindConfigmap, "files", files, first, time.Now())
	is := func(what string, status domain.ManagedStatus, connection domain.ConnectionStatus) {
		t.Helper()
		m := w.get(t, domain.KindConfigmap, "files")
		stored := testkit.Scalar[string](t, w.conn, "select status from connections where id = $1", m.ConnectionID)
		if m.Status != status || stored != string(connection) {
			t.Errorf("%s: it is %s, %s; its connection is %s", what, m.Status, m.Reason, stored)
		}
	}

	for range 2 { // it is made, and found
		w.round(t, func() {})
	}
	is("nothing is renewed", domain.ManagedReady, domain.ConnectionActive)

	w.round(t, func() {
		w.DropTrust(t, first.DelegationID)
		w.exec(t, "update connections set delegation_id = $2, generation = generation + 1 where id = $1", first.ID,
			w.trust(t).DelegationID)
	})
	is("the same connection has another trust", domain.ManagedReady, domain.ConnectionActive)

	w.round(t, func() {
		old := testkit.Scalar[string](t, w.conn, "select delegation_id from connections where id = $1", first.ID)
		longer := w.trust(t)
		longer.ExpiresAt = longer.ExpiresAt.Add(time.Hour)
		w.declare(t, domain.KindConfigmap, "more", files, longer, longer.ExpiresAt)
		w.DropTrust(t, old)
	})
	is("another declaration has renewed it", domain.ManagedReady, domain.ConnectionActive)

	w.round(t, func() {
		w.DropTrust(t, testkit.Scalar[string](t, w.conn,
			"select delegation_id from connections where status = 'active'"))
	})
	is("nobody has renewed it", domain.ManagedError, domain.ConnectionLost)
}
