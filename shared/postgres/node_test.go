package postgres_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestNodes takes a host into the pool and out of it.
func TestNodes(t *testing.T) {
	t.Parallel()
	ctx, database := t.Context(), testkit.Database(t)
	db := open(t, database)
	nodes, leases, isolations := postgres.Nodes{DB: db}, postgres.Leases{DB: db}, postgres.Isolations{DB: db}
	joined, err := nodes.Join(ctx, domain.Node{Name: "compute-1", Zone: "nova", IsUp: true, RequestedBy: "admin"})
	if err != nil || joined.Pool != domain.NodeJoining || joined.Traits == nil || joined.RequestedBy != "admin" {
		t.Fatalf("joined is %+v: %v", joined, err)
	}
	wantCode(t, "a host that is joining", errOf(leases.Create(ctx, newLease(time.Hour, 1))), apperr.Unprocessable)
	if ok, err := nodes.SetPool(ctx, "compute-1", domain.NodeLeaving, domain.NodeReservable, ""); ok || err != nil {
		t.Errorf("from a state that it is not in: %t %v", ok, err)
	}
	if ok, err := nodes.SetPool(ctx, "compute-1", domain.NodeJoining, domain.NodeReservable, ""); !ok || err != nil {
		t.Errorf("reservable: %t %v", ok, err)
	}
	err = nodes.RecordHosts(ctx, []domain.ComputeHost{
		{
			Name: "compute-1", Zone: "west", IsUp: true, ProviderID: "x", VCPUs: 8, RAMMB: 16384, DiskGB: 100,
			Traits: []string{"A", "B"}, Attributes: map[string]string{"cpu_info:arch": "x86_64"},
		},
		{Name: "compute-2", IsUp: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	list, err := nodes.Pool(ctx)
	if err != nil || len(list) != 1 || list[0].Zone != "west" || list[0].VCPUs != 8 || !slices.Equal(list[0].Traits,
		[]string{"A", "B"}) || list[0].Attributes["cpu_info:arch"] != "x86_64" || list[0].SeenAt.IsZero() {
		t.Errorf("recorded is %+v: %v", list, err)
	}
	lease := create(t, leases, newLease(time.Hour, 1))
	wantCode(t, "a host with a reservation", errOf(nodes.Leave(ctx, "compute-1", "admin")), apperr.Conflict)
	wantCode(t, "an ordinary host", errOf(nodes.Leave(ctx, "compute-2", "admin")), apperr.NotFound)
	must(leases.End(ctx, "p1", lease.ID, "", nil))(t)
	if left, err := nodes.Leave(ctx, "compute-1", "boss"); err != nil || left.Pool != domain.NodeLeaving {
		t.Errorf("left is %+v: %v", left, err)
	}
	if ok, err := nodes.Left(ctx, "compute-1"); !ok || err != nil {
		t.Errorf("it is not deleted: %v", err)
	}
	if got, err := isolations.Get(ctx, ""); err != nil || got != (domain.Isolation{}) {
		t.Errorf("never tested: %+v %v", got, err)
	}
	for _, result := range []string{domain.IsolationProven, domain.IsolationUnproven} {
		noError(t, isolations.Set(ctx, "", result, "why"))
	}
	if got, err := isolations.Get(ctx, ""); err != nil || got.Result != domain.IsolationUnproven ||
		got.TestedAt.IsZero() {
		t.Errorf("tested: %+v %v", got, err)
	}
}

// TestDescribe replaces what admins set of a host, by its version.
func TestDescribe(t *testing.T) {
	t.Parallel()
	w, ctx := watch(t, "a"), t.Context()
	settings := domain.NodeSettings{
		Labels: map[string]string{"rack": "r1"}, RegionZone: "west", NetworkZone: "n1", Providers: []string{"docker"},
		StatusURL: "https://a.example/up", Alert: true, AutoCordonAfter: time.Hour, AutoDrainAfter: time.Minute,
	}
	n, err := w.Describe(ctx, "a", settings, 0)
	if err != nil || n.Version != 1 || n.Labels["rack"] != "r1" || n.RegionZone != "west" || n.NetworkZone != "n1" ||
		n.Providers[0] != "docker" || n.StatusURL != settings.StatusURL || !n.Alert ||
		n.AutoCordonAfter != time.Hour || n.AutoDrainAfter != time.Minute || n.Status != domain.NodeUnknown {
		t.Fatalf("%+v: %v", n, err)
	}
	for _, version := range []int64{0, 2} {
		if _, err := w.Describe(ctx, "a", settings, version); !errors.Is(err, domain.ErrChanged) {
			t.Errorf("version %d: %v", version, err)
		}
	}
	n, err = w.Describe(ctx, "a", domain.NodeSettings{}, 1)
	if err != nil || n.Version != 2 || len(n.Labels) != 0 || n.AutoCordonAfter != 0 || n.Alert {
		t.Errorf("%+v: %v", n, err)
	}
	w.observed(limits, "a up")
	if all, err := w.All(ctx); err != nil || len(all) != 1 || all[0].Version != 2 {
		t.Errorf("%+v: %v", all, err)
	}
	if pool, err := w.Pool(ctx); err != nil || len(pool) != 0 {
		t.Errorf("in the pool: %+v: %v", pool, err)
	}
}

// TestDeleteNode: a host in the pool stays; an unknown one is NotFound.
func TestDeleteNode(t *testing.T) {
	t.Parallel()
	w, ctx := watch(t, "a"), t.Context()
	wantCode(t, "unknown", w.Delete(ctx, "a"), apperr.NotFound)
	w.observed(limits, "a up")
	wantCode(t, "left a pool that it is not in", errOf(w.Leave(ctx, "a", "boss")), apperr.NotFound)
	if n, err := w.Join(ctx, domain.Node{Name: "a", RequestedBy: "boss"}); err != nil ||
		n.Pool != domain.NodeJoining || n.RequestedBy != "boss" || n.ServiceID != "s-a" {
		t.Fatalf("%+v: %v", n, err)
	}
	wantCode(t, "in the pool", w.Delete(ctx, "a"), apperr.Conflict)
	must(w.Leave(ctx, "a", "boss"))(t)
	if ok, err := w.Left(ctx, "a"); err != nil || !ok {
		t.Fatal(ok, err)
	}
	if n := w.node("a"); n.Pool != "" || n.Status != domain.NodeUp {
		t.Errorf("after it has left: %+v", n)
	}
	noError(t, w.Delete(ctx, "a"))
}

// TestMonitor: one event when the list of nodes cannot be read, and one when it can be again.
func TestMonitor(t *testing.T) {
	t.Parallel()
	w, ctx := watch(t), t.Context()
	failed := func(reason string) {
		t.Helper()
		noError(t, w.MonitorFailed(ctx, reason))
	}
	works := func() {
		t.Helper()
		noError(t, w.MonitorWorks(ctx))
	}
	const subject = "monitor/nodes"
	works()
	w.events(subject)
	var first errgroup.Group
	for range 4 {
		first.Go(func() error { return w.MonitorFailed(ctx, "nova is unavailable") })
	}
	noError(t, first.Wait())
	w.events(subject, "failed")
	failed("still")
	w.events(subject)
	if got := testkit.Scalar[string](t, w.conn, "select reason from monitors"); got != "still" {
		t.Error(got)
	}
	works()
	works()
	w.events(subject, "works")
	failed("again")
	w.events(subject, "failed")
}

// TestObserveConcurrently: replicas that observe concurrently do not deadlock, and write one event.
func TestObserveConcurrently(t *testing.T) {
	t.Parallel()
	w := watch(t, "a", "b", "c", "d")
	w.observed(limits, "a up", "b up", "c up", "d up")
	w.exec("update nodes set reported_at = now() - interval '200 seconds'")
	var both errgroup.Group
	for range 6 {
		both.Go(func() error {
			_, err := w.Observe(t.Context(), w.hosts, limits)
			return err
		})
	}
	noError(t, both.Wait())
	for _, name := range []string{"a", "b", "c", "d"} {
		w.events(name, "up down")
	}
}

// TestProvenSince: the isolation is proven since the first of the self-tests that have found so without a break.
func TestProvenSince(t *testing.T) {
	t.Parallel()
	db := open(t, testkit.Database(t))
	store := postgres.Isolations{DB: db}
	var first time.Time
	for n, step := range []struct{ result, since string }{
		{domain.IsolationUnproven, "never"},
		{domain.IsolationProven, "now"},
		{domain.IsolationProven, "first"},
		{domain.IsolationUnproven, "never"},
		{domain.IsolationProven, "now"},
	} {
		noError(t, store.Set(t.Context(), "here", step.result, ""))
		got, err := store.Get(t.Context(), "here")
		if err != nil || got.Result != step.result {
			t.Fatalf("step %d: %+v %v", n, got, err)
		}
		switch since := got.ProvenSince; {
		case step.since == "never" && since != nil, step.since != "never" && since == nil,
			step.since == "first" && !since.Equal(first), step.since == "now" && !since.After(first):
			t.Errorf("step %d: it is proven since %v, first %v", n, since, first)
		case step.since == "now":
			first = *since
		}
	}
}
