package watchnodes

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/nodes"
)

var errDead = errors.New("the replica is dead")

// mortal is a replica that dies after its n-th write: from then on nothing it does happens.
type mortal struct {
	left   int
	points []string
}

// step does a write, unless the replica is dead.
func (m *mortal) step(name string, write func() error) error {
	if m.left <= 0 {
		return errDead
	}
	m.left--
	m.points = append(m.points, name)
	if err := write(); err != nil || m.left > 0 {
		return err
	}
	return errDead
}

// mortalNova, mortalNodes and mortalDrains are what such a replica writes to.
type mortalNova struct {
	nodes.WatchCloud
	*mortal
}

func (m mortalNova) DisableService(ctx context.Context, id, reason string) error {
	return m.step("disabled", func() error { return m.WatchCloud.DisableService(ctx, id, reason) })
}

type mortalNodes struct {
	nodes.Store
	*mortal
}

func (m mortalNodes) Observe(
	ctx context.Context, hosts []domain.ComputeHost, limits domain.NodeLimits,
) (changed []domain.Node, err error) {
	return changed, m.step("observed", func() (err error) {
		changed, err = m.Store.Observe(ctx, hosts, limits)
		return err
	})
}

func (m mortalNodes) SetDetails(ctx context.Context, marker string) error {
	return m.step("details stored", func() error { return m.Store.SetDetails(ctx, marker) })
}

func (m mortalNodes) SetCordoned(ctx context.Context, name string, on bool, reason string) (n domain.Node, err error) {
	return n, m.step("cordon stored", func() (err error) {
		n, err = m.Store.SetCordoned(ctx, name, on, reason)
		return err
	})
}

type mortalDrains struct {
	nodes.DrainStore
	*mortal
}

func (m mortalDrains) Create(ctx context.Context, d domain.Drain) (stored domain.Drain, created bool, err error) {
	return stored, created, m.step("drain stored", func() (err error) {
		stored, created, err = m.DrainStore.Create(ctx, d)
		return err
	})
}

// TestCrashPoints kills a replica after each of its writes in turn, while it cordons and drains a host automatically.
// The next one does the rest: the host is cordoned with our reason, and drained once, with one event of each.
func TestCrashPoints(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for n := 1; ; n++ {
		w := watch(t, "a", "b")
		w.tick()
		w.exec(`
update nodes set agent_status = 'suspect', agent_at = now() + interval '1 hour', status = 'suspect',
    status_since = now() - interval '1 hour', not_up_since = now() - interval '1 hour',
    auto_cordon_after = '1 minute', auto_drain_after = '1 minute'
where name = 'a'`)
		w.exec("update monitors set details_at = null")
		dying := &mortal{left: n}
		first := w.watcher
		first.Cloud, first.Nodes = mortalNova{w.nova, dying}, mortalNodes{w.nodes, dying}
		first.Drains = mortalDrains{w.drains, dying}
		_, _ = first.Poll(t.Context()) // its error is that it is dead
		if dying.left > 0 {            // every point was tried
			break
		}
		point := dying.points[n-1]
		seen[point] = true
		w.tick()
		w.tick()
		a := w.nova.hosts[0]
		if got := w.text("select string_agg(node || ' ' || status, ', ') from drains"); got != "a running" {
			t.Errorf("after %q the drains are %q", point, got)
		}
		got := w.text("select (cordoned_at is not null) || ' ' || disabled_reason from nodes where name = 'a'")
		if a.IsEnabled || got != "true "+a.DisabledReason {
			t.Errorf("after %q the host is stored as %q, and in Nova %+v", point, got, a)
		}
		if w.nova.disabled > 2 {
			t.Errorf("after %q the host was disabled %d times", point, w.nova.disabled)
		}
		if got := w.text(`
select string_agg(type, ' ' order by seq) from events
where subject = 'a' and (type = $1 or not (data->>'schedulable')::boolean)`,
			domain.DrainEvent); got != domain.NodeEvent+" "+domain.DrainEvent {
			t.Errorf("after %q the events are %q", point, got)
		}
	}
	want := []string{"cordon stored", "details stored", "disabled", "drain stored", "observed"}
	if got := slices.Sorted(maps.Keys(seen)); !slices.Equal(got, want) {
		t.Errorf("the points are %q, want %q", got, want)
	}
}
