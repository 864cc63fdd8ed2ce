package nodes

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
)

var errDead = errors.New("the replica is dead")

// mortal is the cloud and the store of a replica that dies after its n-th write: from then on nothing it does happens.
type mortal struct {
	*fakeNova
	*fakeDrains

	left   int
	points []string
}

// step does a write, unless the replica is dead.
func (m *mortal) step(name string, write func() error) error {
	m.fakeDrains.Lock()
	if m.left <= 0 {
		m.fakeDrains.Unlock()
		return errDead
	}
	m.left--
	isLast := m.left == 0
	m.points = append(m.points, name)
	m.fakeDrains.Unlock()
	if err := write(); err != nil || !isLast {
		return err
	}
	return errDead
}

func (m *mortal) SetServers(
	ctx context.Context, claim domain.Claim, drain domain.Drain, servers ...domain.DrainServer,
) error {
	return m.step("servers stored", func() error { return m.fakeDrains.SetServers(ctx, claim, drain, servers...) })
}

func (m *mortal) StartServer(
	ctx context.Context, claim domain.Claim, drain domain.Drain, server domain.DrainServer,
) (started bool, err error) {
	err = m.step("server started", func() error {
		started, err = m.fakeDrains.StartServer(ctx, claim, drain, server)
		return err
	})
	return started, err
}

func (m *mortal) Save(ctx context.Context, claim domain.Claim, drain *domain.Drain, claimFor time.Duration) error {
	return m.step("drain saved", func() error { return m.fakeDrains.Save(ctx, claim, drain, claimFor) })
}

// moves has Nova answer a call, and move the server.
func (m *mortal) moves(name, call, id string, after domain.Server) error {
	return m.step(name, func() error {
		err := m.call(call, id)
		m.fakeNova.Lock()
		defer m.fakeNova.Unlock()
		after.ID, after.Host = id, "b"
		m.fakeNova.servers[id], m.migration[id] = after, domain.Migration{Status: "finished"}
		return err
	})
}

func (m *mortal) LiveMigrate(_ context.Context, id string) error {
	return m.moves("live migration requested", "live", id, domain.Server{Status: "ACTIVE"})
}

func (m *mortal) ColdMigrate(_ context.Context, id string) error {
	return m.moves("cold migration requested", "cold", id, domain.Server{Status: "VERIFY_RESIZE"})
}

func (m *mortal) ConfirmMigration(_ context.Context, id string) error {
	return m.moves("migration confirmed", "confirm", id, domain.Server{Status: "SHUTOFF"})
}

// TestCrashPoints kills a replica after each of the writes of a drain in turn. Another one ends the drain, and each
// server has moved once.
func TestCrashPoints(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for n := 1; ; n++ {
		nova, drains, drain := oneServer("ACTIVE", domain.DrainServer{})
		nova.servers["2"] = domain.Server{ID: "2", Status: "SHUTOFF", Host: "a"}
		drain.Parallel = 1 // so that the writes have an order
		drains.saved = drain
		now := epoch
		pass := func(m *mortal) {
			drain := drains.saved
			drain.Servers = slices.SortedFunc(maps.Values(drains.servers), func(a, b domain.DrainServer) int {
				return int(a.ServerID[0]) - int(b.ServerID[0])
			})
			now = now.Add(10 * time.Second)
			_ = Engine{
				Drains: m, Cloud: func(context.Context) (DrainCloud, error) { return m, nil }, Wake: func(...string) {},
			}.Run(t.Context(), domain.NewClaim(), drain, now) // its error is that it is dead
		}
		first := &mortal{fakeNova: nova, fakeDrains: drains, left: n}
		for range 10 {
			if !drains.saved.DueAt.IsZero() && first.left > 0 {
				pass(first)
			}
		}
		if first.left > 0 { // every point was tried
			break
		}
		point := first.points[n-1]
		seen[point] = true
		second := &mortal{fakeNova: nova, fakeDrains: drains, left: 1000}
		for range 10 {
			if drains.saved.DueAt.IsZero() {
				break
			}
			pass(second)
		}
		moved, left, skipped := drains.saved.Counts()
		calls := slices.Sorted(slices.Values(nova.calls))
		if drains.saved.Status != domain.DrainDone || moved != 2 || left+skipped != 0 ||
			nova.servers["1"].Status != "ACTIVE" || nova.servers["2"].Status != "SHUTOFF" ||
			!slices.Equal(slices.Compact(slices.Clone(calls)), []string{"cold 2", "confirm 2", "live 1"}) || len(calls) > 4 {
			t.Errorf("after %s (%d): %+v, calls %v", point, n, drains.saved, calls)
		}
	}
	want := []string{
		"cold migration requested", "drain saved", "live migration requested", "migration confirmed", "server started",
		"servers stored",
	}
	if got := slices.Sorted(maps.Keys(seen)); !slices.Equal(got, want) {
		t.Errorf("the points are %q, want %q", got, want)
	}
}
