package nodes

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// two has a second server on the host, which can move.
func two(stored domain.DrainServer, first domain.Server) (*fakeNova, *fakeDrains, domain.Drain) {
	nova, drains, drain := oneServer("", stored)
	first.ID = "1"
	nova.servers["1"] = first
	nova.servers["2"] = domain.Server{ID: "2", Status: "ACTIVE", Host: "a"}
	return nova, drains, drain
}

// TestOneBadServer: one server that cannot be followed keeps no other from moving, and is skipped when it is late.
func TestOneBadServer(t *testing.T) {
	t.Parallel()
	broken := apperr.New(apperr.BadGateway, "nova says no")
	there := domain.Server{Status: "VERIFY_RESIZE", Host: "b"}
	for name, tc := range map[string]struct {
		fails  string
		server domain.Server
		method string
	}{
		"its read fails":             {"server 1", there, domain.ColdMigration},
		"its migrations cannot be":   {"migration 1", domain.Server{Status: "ACTIVE", Host: "a"}, domain.LiveMigration},
		"its confirmation fails":     {"confirm 1", there, domain.ColdMigration},
		"its migration's fault does": {"fault", domain.Server{Status: "ACTIVE", Host: "a"}, domain.LiveMigration},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nova, drains, drain := two(moving(tc.method, 1), tc.server)
			nova.fails[tc.fails] = broken
			nova.migration["1"] = domain.Migration{Status: "finished"}
			if tc.fails == "fault" {
				nova.migration["1"] = domain.Migration{Status: "error"}
			}
			if err := run(t, nova, drains, drain, epoch); err != nil || !slices.Contains(nova.calls, "live 2") ||
				drains.saved.Reason != "nova says no" || drains.saved.DueAt.IsZero() {
				t.Fatalf("got %+v, calls %v: %v", drains.saved, nova.calls, err)
			}
			drain.Status = domain.DrainCancelled
			if err := run(t, nova, drains, drain, epoch.Add(time.Hour)); err != nil || !drains.saved.DueAt.IsZero() {
				t.Errorf("cancelled, it never ends: %+v: %v", drains.saved, err)
			}
			got := drains.servers["1"]
			if got.Status != domain.DrainSkipped || !strings.HasSuffix(got.Reason, "nova says no") {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// TestFaultIsHidden: Nova's policy may hide why a migration has failed. The server is tried again all the same.
func TestFaultIsHidden(t *testing.T) {
	t.Parallel()
	nova, drains, drain := oneServer("ACTIVE", moving(domain.LiveMigration, 1))
	nova.migration["1"] = domain.Migration{Status: "error"}
	nova.fails["fault"] = apperr.New(apperr.Forbidden, "policy")
	if err := run(t, nova, drains, drain, epoch); err != nil ||
		drains.saved.Servers[0].Status != domain.DrainPending ||
		drains.saved.Servers[0].Reason != "Nova's migration is error" {
		t.Errorf("got %+v: %v", drains.saved, err)
	}
}

// TestHiddenServer: a pending server that Nova neither lists nor moves is skipped in time.
func TestHiddenServer(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*fakeNova){
		"unreadable": func(f *fakeNova) { f.fails["server 1"] = apperr.New(apperr.BadGateway, "no") },
		"partial":    func(f *fakeNova) { f.servers["1"] = domain.Server{ID: "1", Partial: true} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nova, drains, drain := oneServer("ACTIVE", domain.DrainServer{ServerID: "1", Status: domain.DrainPending})
			nova.servers["1"] = domain.Server{ID: "1", Host: "b"}
			change(nova)
			for _, at := range []time.Time{epoch, epoch.Add(time.Hour)} {
				if err := run(t, nova, drains, drain, at); err != nil {
					t.Fatal(err)
				}
				drain.Servers = drains.saved.Servers
			}
			if got := drains.servers["1"]; got.Status != domain.DrainSkipped {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// TestDrainSettles: a drain of an empty host waits for servers that were scheduled before the cordon, and moves again
// what has come back.
func TestDrainSettles(t *testing.T) {
	t.Parallel()
	nova, drains, drain := oneServer("ACTIVE", domain.DrainServer{})
	landing := nova.servers["1"]
	delete(nova.servers, "1")
	drain.CreatedAt = epoch
	if err := run(t, nova, drains, drain, epoch.Add(time.Second)); err != nil ||
		!drains.saved.DueAt.Equal(epoch.Add(settleTime)) || drains.saved.Status != domain.DrainRunning {
		t.Fatalf("got %+v: %v", drains.saved, err)
	}
	nova.servers["1"] = landing
	if err := run(t, nova, drains, drain, epoch.Add(settleTime)); err != nil || len(nova.calls) != 1 {
		t.Fatalf("a late server: calls %v: %v", nova.calls, err)
	}
	drain.Servers = []domain.DrainServer{{
		ServerID: "1", Method: domain.LiveMigration, Status: domain.DrainMoved, Target: "b", Attempts: 1,
	}}
	if err := run(t, nova, drains, drain, epoch.Add(time.Hour)); err != nil || len(nova.calls) != 2 ||
		drains.saved.Servers[0].Status != domain.DrainMigrating {
		t.Errorf("one that has come back: %+v, calls %v: %v", drains.saved, nova.calls, err)
	}
}

// TestCancelledMeanwhile: of the servers that a pass has chosen no other begins to move after the drain is cancelled.
func TestCancelledMeanwhile(t *testing.T) {
	t.Parallel()
	nova, drains, drain := two(domain.DrainServer{}, domain.Server{Status: "ACTIVE", Host: "a"})
	drains.starts = 1
	if err := run(t, nova, drains, drain, epoch); err != nil || len(nova.calls) != 1 ||
		inFlight(drains.saved.Servers) != 1 {
		t.Errorf("calls %v, %+v: %v", nova.calls, drains.saved.Servers, err)
	}
}

// TestCrashIsNoAttempt: an attempt counts only after Nova was called, so a replica that dies before has made none.
func TestCrashIsNoAttempt(t *testing.T) {
	t.Parallel()
	nova, drains, drain := oneServer("ACTIVE", domain.DrainServer{})
	drains.onStart = func(stored domain.DrainServer) {
		if stored.Attempts != 0 {
			t.Errorf("stored before the call: %+v", stored)
		}
	}
	if err := run(t, nova, drains, drain, epoch); err != nil || drains.servers["1"].Attempts != 1 {
		t.Errorf("got %+v: %v", drains.servers["1"], err)
	}
}

// TestLateOnesKeepTheirSlot: a live migration that takes too long still loads the host.
func TestLateOnesKeepTheirSlot(t *testing.T) {
	t.Parallel()
	late := moving(domain.LiveMigration, 1)
	late.Status, late.EndedAt = domain.DrainSkipped, epoch
	nova, drains, drain := two(late, domain.Server{Status: "MIGRATING", Task: "migrating", Host: "a"})
	drain.Parallel = 1
	if err := run(t, nova, drains, drain, epoch); err != nil || len(nova.calls) != 0 {
		t.Errorf("calls %v: %v", nova.calls, err)
	}
	if err := run(t, nova, drains, drain, epoch.Add(drain.ServerTimeout)); err != nil || len(nova.calls) != 1 {
		t.Errorf("after one more timeout: calls %v: %v", nova.calls, err)
	}
}

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
