package postgres_test

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

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
	if err := w.Delete(ctx, "a"); apperr.CodeOf(err) != apperr.NotFound {
		t.Errorf("unknown: %v", err)
	}
	w.observed(limits, "a up")
	if _, err := w.Leave(ctx, "a", "boss"); apperr.CodeOf(err) != apperr.NotFound {
		t.Errorf("left a pool that it is not in: %v", err)
	}
	if n, err := w.Join(ctx, domain.Node{Name: "a", RequestedBy: "boss"}); err != nil ||
		n.Pool != domain.NodeJoining || n.RequestedBy != "boss" || n.ServiceID != "s-a" {
		t.Fatalf("%+v: %v", n, err)
	}
	if err := w.Delete(ctx, "a"); apperr.CodeOf(err) != apperr.Conflict {
		t.Errorf("in the pool: %v", err)
	}
	if _, err := w.Leave(ctx, "a", "boss"); err != nil {
		t.Fatal(err)
	}
	if ok, err := w.Left(ctx, "a"); err != nil || !ok {
		t.Fatal(ok, err)
	}
	if n := w.node("a"); n.Pool != "" || n.Status != domain.NodeUp {
		t.Errorf("after it has left: %+v", n)
	}
	if err := w.Delete(ctx, "a"); err != nil {
		t.Error(err)
	}
}

// TestMonitor: one event when the list of nodes cannot be read, and one when it can be again.
func TestMonitor(t *testing.T) {
	t.Parallel()
	w, ctx := watch(t), t.Context()
	failed := func(reason string) {
		t.Helper()
		if err := w.MonitorFailed(ctx, reason); err != nil {
			t.Fatal(err)
		}
	}
	works := func() {
		t.Helper()
		if err := w.MonitorWorks(ctx); err != nil {
			t.Fatal(err)
		}
	}
	const subject = "monitor/nodes"
	works()
	w.events(subject)
	var first errgroup.Group
	for range 4 {
		first.Go(func() error { return w.MonitorFailed(ctx, "nova is away") })
	}
	if err := first.Wait(); err != nil {
		t.Fatal(err)
	}
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

// TestObserveConcurrently: replicas that observe at once do not deadlock, and write one event.
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
	if err := both.Wait(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b", "c", "d"} {
		w.events(name, "up down")
	}
}
