package postgres_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

const overlapsSQL = `
select count(*)::int from allocations a join allocations b on a.node = b.node and a.during && b.during
where (a.project_id, a.reservation_id) < (b.project_id, b.reservation_id)`

// TestBookingContention: 50 users book random overlapping times of 2 hosts. No host is booked twice, and what a refusal
// names as free is free.
func TestBookingContention(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	store, conn := postgres.Leases{DB: open(t, database)}, testkit.Connect(t, database)
	addNodes(t, conn, 2)
	var all sync.WaitGroup
	var mu sync.Mutex
	var refused []domain.NewLease
	granted := 0
	for user := range 50 {
		all.Go(func() {
			for range 4 {
				made := newLease(time.Duration(rand.IntN(48))*30*time.Minute, 1+rand.IntN(2))
				made.Lease.ProjectID = fmt.Sprintf("p%d", user%7)
				made.Lease.EndsAt = made.Lease.StartsAt.Add(time.Duration(1+rand.IntN(8)) * 30 * time.Minute)
				_, err := store.Create(t.Context(), made)
				mu.Lock()
				if refusal, ok := errors.AsType[*domain.FreeError](err); ok && apperr.CodeOf(err) == apperr.Conflict {
					length := made.Lease.EndsAt.Sub(made.Lease.StartsAt)
					made.Lease.StartsAt = refusal.FreeAt
					made.Lease.EndsAt = refusal.FreeAt.Add(length)
					refused = append(refused, made)
				} else if err != nil {
					t.Errorf("neither granted nor refused: %v", err)
				} else {
					granted++
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if n := testkit.Scalar[int](t, conn, overlapsSQL); n != 0 || granted == 0 || len(refused) == 0 {
		t.Errorf("%d granted, %d refused, %d overlap", granted, len(refused), n)
	}
	t.Logf("%d granted, %d refused", granted, len(refused))
	for _, made := range refused {
		if _, err := store.Check(t.Context(), made); err == nil {
			continue // still free
		} else if refusal, ok := errors.AsType[*domain.FreeError](err); ok { // others have booked since
			length := made.Lease.EndsAt.Sub(made.Lease.StartsAt)
			made.Lease.StartsAt, made.Lease.EndsAt = refusal.FreeAt, refusal.FreeAt.Add(length)
		}
		if _, err := store.Check(t.Context(), made); err != nil {
			t.Errorf("what is free from %s is refused: %v", made.Lease.StartsAt, err)
		}
	}
}

// TestBackToBack: a lease may begin when another one ends, and not before its cleaning.
func TestBackToBack(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	store, conn := postgres.Leases{DB: open(t, database)}, testkit.Connect(t, database)
	addNodes(t, conn, 1)
	first, next := newLease(time.Hour, 1), newLease(2*time.Hour, 1)
	next.Lease.StartsAt, next.Lease.EndsAt = first.Lease.EndsAt, first.Lease.EndsAt.AddDate(0, 1, 0)
	create(t, store, first)
	create(t, store, next)
	clean := newLease(0, 1)
	clean.Rules.Cleaning = time.Minute
	clean.Lease.StartsAt = next.Lease.EndsAt
	clean.Lease.EndsAt = clean.Lease.StartsAt.AddDate(0, 1, 0) // a month
	create(t, store, clean)
	late := newLease(0, 1)
	late.Lease.StartsAt, late.Lease.EndsAt = clean.Lease.EndsAt, clean.Lease.EndsAt.AddDate(0, 1, 0)
	_, err := store.Create(t.Context(), late)
	refusal, ok := errors.AsType[*domain.FreeError](err)
	if !ok || !refusal.FreeAt.Equal(clean.Lease.EndsAt.Add(time.Minute)) {
		t.Errorf("during the cleaning: %v", err)
	}
}

// TestReallocate: a host that is down is replaced by a free one that is up.
func TestReallocate(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	db, conn := open(t, database), testkit.Connect(t, database)
	store, nodes := postgres.Leases{DB: db}, postgres.Nodes{DB: db}
	addNodes(t, conn, 2)
	create(t, store, newLease(0, 1))
	l, claim := claimOne(t, store)
	r, old := l.Reservations[0], l.Reservations[0].Allocations[0].Node
	if err := store.Prepared(t.Context(), claim, r, old); err != nil {
		t.Fatal(err)
	}
	if err := nodes.SetUp(t.Context(), old, false); err != nil {
		t.Fatal(err)
	}
	to, ok, err := store.Reallocate(t.Context(), claim, *l, r, old)
	if err != nil || !ok || to == old {
		t.Fatalf("got %q %t %v", to, ok, err)
	}
	shown, err := store.Get(t.Context(), "p1", l.ID)
	if err != nil || len(shown.Reservations[0].Allocations) != 2 || shown.Reservations[0].Allocations[1].Node != to ||
		shown.Reservations[0].Allocations[0].ReplacedAt.IsZero() {
		t.Errorf("it has %+v: %v", shown.Reservations[0].Allocations, err)
	}
	if err := nodes.SetUp(t.Context(), old, true); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Check(t.Context(), newLease(0, 1)); err == nil {
		t.Error("a host with servers of the reservation that had it can be booked")
	}
	if err := nodes.SetUp(t.Context(), old, false); err != nil {
		t.Fatal(err)
	}
	if err := store.Released(t.Context(), claim, r, old); err != nil {
		t.Error(err)
	}
	if err := nodes.SetUp(t.Context(), to, false); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := store.Reallocate(t.Context(), claim, *l, r, to); ok || err != nil {
		t.Errorf("no other host is up: %t %v", ok, err)
	}
	if err := nodes.SetUp(t.Context(), old, true); err != nil {
		t.Fatal(err)
	}
	if back, ok, err := store.Reallocate(t.Context(), claim, *l, r, to); !ok || err != nil || back != old {
		t.Errorf("the first host is up again: %q %t %v", back, ok, err)
	}
	if _, _, err := store.Reallocate(t.Context(), claim, *l, r, "n999"); !errors.Is(err, domain.ErrChanged) {
		t.Errorf("a host that it does not have: %v", err)
	}
}
