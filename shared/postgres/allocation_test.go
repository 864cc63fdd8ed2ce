package postgres_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

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
	store, conn := reservable(t, 2)
	var mu sync.Mutex
	var refused []domain.NewLease
	granted := 0
	concurrently(50, func(user int) {
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
	store, _ := reservable(t, 1)
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
	noError(t, store.Prepared(t.Context(), claim, r, old))
	noError(t, nodes.SetUp(t.Context(), old, false))
	to, ok, err := store.Reallocate(t.Context(), claim, *l, r, old)
	if err != nil || !ok || to == old {
		t.Fatalf("got %q %t %v", to, ok, err)
	}
	shown, err := store.Get(t.Context(), "p1", l.ID)
	if err != nil || len(shown.Reservations[0].Allocations) != 2 || shown.Reservations[0].Allocations[1].Node != to ||
		shown.Reservations[0].Allocations[0].ReplacedAt.IsZero() {
		t.Errorf("it has %+v: %v", shown.Reservations[0].Allocations, err)
	}
	noError(t, nodes.SetUp(t.Context(), old, true))
	if _, err := store.Check(t.Context(), newLease(0, 1)); err == nil {
		t.Error("a host with servers of the reservation that had it can be booked")
	}
	noError(t, nodes.SetUp(t.Context(), old, false))
	noError(t, store.Released(t.Context(), claim, r, old))
	noError(t, nodes.SetUp(t.Context(), to, false))
	if _, ok, err := store.Reallocate(t.Context(), claim, *l, r, to); ok || err != nil {
		t.Errorf("no other host is up: %t %v", ok, err)
	}
	noError(t, nodes.SetUp(t.Context(), old, true))
	if back, ok, err := store.Reallocate(t.Context(), claim, *l, r, to); !ok || err != nil || back != old {
		t.Errorf("the first host is up again: %q %t %v", back, ok, err)
	}
	if _, _, err := store.Reallocate(t.Context(), claim, *l, r, "n999"); !errors.Is(err, domain.ErrChanged) {
		t.Errorf("a host that it does not have: %v", err)
	}
}

// TestFreeAtIsTheFirst: a refusal names the first free time, to the microsecond.
func TestFreeAtIsTheFirst(t *testing.T) {
	t.Parallel()
	store, _ := reservable(t, 3)
	base := time.Now().Add(time.Hour).UTC().Truncate(time.Hour)
	for range 60 {
		made := newLease(0, 1+rand.IntN(2))
		made.Lease.StartsAt = base.Add(time.Duration(1+rand.IntN(40)) * time.Hour)
		made.Lease.EndsAt = made.Lease.StartsAt.Add(time.Duration(1+rand.IntN(4)) * time.Hour)
		_, _ = store.Create(t.Context(), made)
	}
	var found int
	for hosts := 1; hosts <= 3; hosts++ {
		for _, length := range []time.Duration{time.Hour, 3 * time.Hour, 7 * time.Hour} {
			for first := 0; first < 44; first += 5 {
				made := newLease(0, hosts)
				made.Rules.Cleaning = 30 * time.Minute
				made.Lease.StartsAt = base.Add(time.Duration(first) * time.Hour)
				made.Lease.EndsAt = made.Lease.StartsAt.Add(length)
				_, err := store.Check(t.Context(), made)
				refusal, ok := errors.AsType[*domain.FreeError](err)
				if !ok {
					continue
				}
				found++
				// every allocation begins and ends at a full hour, so one can only begin to fit then
				for at := made.Lease.StartsAt; !at.After(refusal.FreeAt); at = at.Add(time.Hour) {
					made.Lease.StartsAt, made.Lease.EndsAt = at, at.Add(length)
					_, err := store.Check(t.Context(), made)
					if (err == nil) != at.Equal(refusal.FreeAt) {
						t.Fatalf("%d hosts for %s from %s: refused until %s, but at %s: %v", hosts, length,
							base.Add(time.Duration(first)*time.Hour), refusal.FreeAt, at, err)
					}
				}
			}
		}
	}
	if found == 0 {
		t.Error("nothing was refused")
	}
}

// TestAvailability compares the slots with what can be booked.
func TestAvailability(t *testing.T) {
	t.Parallel()
	store, conn := reservable(t, 2)
	base := time.Now().Add(24 * time.Hour).UTC().Truncate(time.Hour)
	at := func(hours int) time.Time { return base.Add(time.Duration(hours) * time.Hour) }
	for _, busy := range [][3]int{{2, 4, 2}, {6, 9, 1}, {10, 12, 2}} {
		made := newLease(0, busy[2])
		made.Lease.StartsAt, made.Lease.EndsAt = at(busy[0]), at(busy[1])
		create(t, store, made)
	}
	query := domain.FreeQuery{Hosts: 2, Length: period(t, "PT2H"), From: base, Until: at(20), Limit: 10}
	for _, tc := range []struct {
		name   string
		change func(q *domain.FreeQuery)
		want   string
	}{
		{"two hosts", func(*domain.FreeQuery) {}, "0-2x2 4-6x2 12-20x2"},
		{"one host", func(q *domain.FreeQuery) { q.Hosts = 1 }, "0-2x2 4-10x1 12-20x2"},
		{"limit", func(q *domain.FreeQuery) { q.Limit = 1 }, "0-2x2"},
		{"cleaning", func(q *domain.FreeQuery) { q.Cleaning = time.Hour }, "12-20x2"},
		{"one host and cleaning", func(q *domain.FreeQuery) { q.Hosts, q.Cleaning = 1, time.Hour }, "4-9x1 12-20x2"},
		{"too long", func(q *domain.FreeQuery) { q.Length = period(t, "PT9H") }, ""},
		{"from the middle", func(q *domain.FreeQuery) { q.From = at(3) }, "4-6x2 12-20x2"},
		{"three hosts", func(q *domain.FreeQuery) { q.Hosts = 3 }, ""},
		{"unknown zone", func(q *domain.FreeQuery) { q.Request.Zone = "moon" }, ""},
		{"a trait", func(q *domain.FreeQuery) { q.Request.Traits = []string{"HW_CPU_X86_AVX2"} }, "0-2x2 4-6x2 12-20x2"},
		{"another trait", func(q *domain.FreeQuery) { q.Request.Traits = []string{"HW_CPU_X86_AVX512F"} }, ""},
		{"a capability", func(q *domain.FreeQuery) {
			q.Request.Capabilities = []string{"cpu_info:arch s== x86_64"}
		}, ""},
		{"too many cores", func(q *domain.FreeQuery) { q.Request.VCPUs = 33 }, ""},
	} {
		q := query
		tc.change(&q)
		slots, err := store.Availability(t.Context(), q)
		words := make([]string, len(slots))
		for n, s := range slots {
			words[n] = fmt.Sprintf("%.0f-%.0fx%d", s.From.Sub(base).Hours(), s.Until.Sub(base).Hours(), s.Hosts)
		}
		got := strings.Join(words, " ")
		if err != nil || got != tc.want {
			t.Errorf("%s: got %q, want %q: %v", tc.name, got, tc.want, err)
		}
	}
	write(t, conn, `update nodes set attributes = '{"cpu_info:arch": "x86_64"}' where name = 'n001'`)
	capable := query
	capable.Hosts, capable.Limit = 1, 1
	capable.Request.Capabilities = []string{"cpu_info:arch s== x86_64"}
	if slots, err := store.Availability(t.Context(), capable); err != nil || len(slots) != 1 || slots[0].Hosts != 1 {
		t.Errorf("one host has the capability: %+v %v", slots, err)
	}
	made := newLease(0, 2)
	made.Lease.StartsAt, made.Lease.EndsAt = at(30), at(31)
	made.Lease.Reservations[0].Request.Capabilities = capable.Request.Capabilities
	wantCode(t, "two hosts with the capability", errOf(store.Check(t.Context(), made)), apperr.Unprocessable)
	held, err := store.Allocations(t.Context(), domain.AllocationQuery{From: at(3), Until: at(7)})
	if err != nil || len(held) != 3 || held[0].LeaseID == uuid.Nil || held[0].ProjectID != "p1" {
		t.Errorf("between 3 and 7 are %+v: %v", held, err)
	}
}

func period(t *testing.T, text string) domain.Period {
	t.Helper()
	return must(domain.ParsePeriod(text))(t)
}

// TestFreeMonths: a month is that of the calendar from the start of each slot, and not as long as the one that was
// queried.
func TestFreeMonths(t *testing.T) {
	t.Parallel()
	store, _ := reservable(t, 1)
	day := func(month time.Month, day int) time.Time { return time.Date(2031, month, day, 0, 0, 0, 0, time.UTC) }
	for _, busy := range [][2]time.Time{{day(2, 1), day(3, 1)}, {day(3, 30), day(4, 2)}, {day(5, 2), day(5, 3)}} {
		made := newLease(0, 1)
		made.Lease.StartsAt, made.Lease.EndsAt = busy[0], busy[1]
		create(t, store, made)
	}
	month := period(t, "P1M") // from 1 February it has 28 days, and the gap in March 29
	slots, err := store.Availability(t.Context(), domain.FreeQuery{
		Hosts: 1, Length: month, From: day(2, 1), Until: day(12, 1), Limit: 5,
	})
	if err != nil || len(slots) != 2 || !slots[0].From.Equal(day(4, 2)) || !slots[1].From.Equal(day(5, 3)) {
		t.Errorf("got %+v %v", slots, err)
	}
	made := newLease(0, 1)
	made.Lease.StartsAt, made.Lease.EndsAt, made.Lease.Length = day(2, 1), day(3, 1), month
	_, err = store.Check(t.Context(), made)
	refusal, ok := errors.AsType[*domain.FreeError](err)
	if !ok || !refusal.FreeAt.Equal(day(4, 2)) || !refusal.FreeEnd.Equal(day(5, 2)) {
		t.Fatalf("got %+v", err)
	}
	made.Lease.StartsAt, made.Lease.EndsAt = refusal.FreeAt, refusal.FreeEnd
	if _, err := store.Check(t.Context(), made); err != nil {
		t.Errorf("what is free is refused: %v", err)
	}
}

// TestOutOfService: hosts that are down or cordoned are for leases that begin when they are expected back.
func TestOutOfService(t *testing.T) {
	t.Parallel()
	store, conn := reservable(t, 2)
	for _, fault := range []string{"is_up = false", "enabled = false", "status = 'down'"} {
		write(t, conn, "update nodes set is_up = true, enabled = true, status = 'up'")
		write(t, conn, "update nodes set "+fault+" where name = 'n001'")
		back := testkit.Scalar[time.Time](t, conn, "select date_trunc('day', now(), 'UTC') + interval '2 days'")
		create(t, store, newLease(0, 1))
		if n := testkit.Scalar[string](t, conn, "select node from allocations"); n != "n002" {
			t.Errorf("%s: %s is given", fault, n)
		}
		write(t, conn, "delete from leases")
		slots, err := store.Availability(t.Context(), domain.FreeQuery{
			Hosts: 2, Length: period(t, "PT1H"), From: time.Now(), Until: time.Now().AddDate(1, 0, 0), Limit: 5,
		})
		if err != nil || len(slots) != 1 || !slots[0].From.Equal(back) {
			t.Errorf("%s: two are free at %+v, %v, want %s", fault, slots, err, back)
		}
		made := newLease(0, 2)
		_, err = store.Check(t.Context(), made)
		refusal, ok := errors.AsType[*domain.FreeError](err)
		if !ok || apperr.CodeOf(err) != apperr.Conflict || !refusal.FreeAt.Equal(back) {
			t.Fatalf("%s: got %v", fault, err)
		}
		made.Lease.StartsAt, made.Lease.EndsAt = refusal.FreeAt, refusal.FreeEnd
		if _, err := store.Check(t.Context(), made); err != nil {
			t.Errorf("%s: what is free is refused: %v", fault, err)
		}
	}
}

// TestFreeAtOfSeveral: a refused lease with several host reservations fits as a whole at the time that is named.
func TestFreeAtOfSeveral(t *testing.T) {
	t.Parallel()
	store, _ := reservable(t, 3)
	base := time.Now().Add(time.Hour).UTC().Truncate(time.Hour)
	for range 30 {
		made := newLease(0, 1)
		made.Lease.StartsAt = base.Add(time.Duration(rand.IntN(20)) * time.Hour)
		made.Lease.EndsAt = made.Lease.StartsAt.Add(time.Duration(1+rand.IntN(3)) * time.Hour)
		_, _ = store.Create(t.Context(), made)
	}
	refused := 0
	for first := range 20 {
		made := newLease(0, 1)
		made.Lease.Reservations = append(made.Lease.Reservations, domain.Reservation{
			ID: uuid.New(), Type: domain.HostReservation, Request: &domain.HostRequest{Min: 2, Max: 2},
		})
		made.Lease.StartsAt = base.Add(time.Duration(first) * time.Hour)
		made.Lease.EndsAt = made.Lease.StartsAt.Add(2 * time.Hour)
		_, err := store.Check(t.Context(), made)
		refusal, ok := errors.AsType[*domain.FreeError](err)
		if !ok {
			continue
		}
		refused++
		made.Lease.StartsAt, made.Lease.EndsAt = refusal.FreeAt, refusal.FreeAt.Add(2*time.Hour)
		if _, err := store.Check(t.Context(), made); err != nil {
			t.Errorf("what is free from %s is refused: %v", refusal.FreeAt, err)
		}
	}
	many := newLease(0, 2)
	many.Lease.Reservations = append(many.Lease.Reservations, domain.Reservation{
		ID: uuid.New(), Type: domain.HostReservation, Request: &domain.HostRequest{Min: 2, Max: 2},
	})
	many.Lease.StartsAt, many.Lease.EndsAt = base, base.Add(time.Hour)
	_, err := store.Check(t.Context(), many)
	if refusal, ok := errors.AsType[*domain.FreeError](err); !ok || !refusal.FreeAt.IsZero() || refused == 0 {
		t.Errorf("4 hosts of 3 in 2 reservations, %d refused before: %v", refused, err)
	}
}
