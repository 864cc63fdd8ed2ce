package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// reserving is a lease with these reservations of hosts.
func reserving(in time.Duration, wants ...domain.HostRequest) domain.NewLease {
	made := newLease(in, 1)
	made.Lease.Reservations = nil
	for _, want := range wants {
		made.Lease.Reservations = append(made.Lease.Reservations, domain.Reservation{
			ID: uuid.New(), Type: domain.HostReservation, Request: &want,
		})
	}
	return made
}

// countInserts counts the rows that are inserted into allocations, also those that are rolled back.
func countInserts(t *testing.T, conn *pgx.Conn) (inserted func() int) {
	t.Helper()
	write(t, conn, `create sequence inserted`)
	write(t, conn, `
create function count_insert() returns trigger language plpgsql security definer as $$
begin perform nextval('public.inserted'); return new; end $$`)
	write(t, conn, `
create trigger count_insert before insert on allocations for each row execute function count_insert()`)
	return func() int {
		return testkit.Scalar[int](t, conn, `select case when is_called then last_value else 0 end::int from inserted`)
	}
}

// TestMinimaFirst: no reservation takes more than its min before each has its own, whichever hosts fit it.
func TestMinimaFirst(t *testing.T) {
	t.Parallel()
	store, conn := reservable(t, 3)
	write(t, conn, `update nodes set vcpus = 16, traits = '{HW_CPU_X86_AVX2,HW_CPU_X86_AVX512F}' where name = 'n001'`)
	special := []string{"HW_CPU_X86_AVX512F"} // the smallest host alone has it
	for _, tc := range []struct {
		name  string
		wants []domain.HostRequest
		got   []int
	}{
		{"fill up", []domain.HostRequest{{Min: 1, Max: 3}, {Min: 1, Max: 1}}, []int{2, 1}},
		{"fill up the second", []domain.HostRequest{{Min: 1, Max: 1}, {Min: 1, Max: 1000}}, []int{1, 2}},
		{"one fits one host", []domain.HostRequest{{Min: 2, Max: 2}, {Min: 1, Max: 1, Traits: special}}, []int{2, 1}},
		{"large ones for the other", []domain.HostRequest{{Min: 1, Max: 3}, {Min: 2, Max: 2, VCPUs: 32}}, []int{1, 2}},
	} {
		for _, isDry := range []bool{true, false} {
			made, book := reserving(time.Hour, tc.wants...), store.Create
			if isDry {
				book = store.Check
			}
			l, err := book(t.Context(), made)
			if err != nil {
				t.Errorf("%s, dry run %t: %v", tc.name, isDry, err)
				continue
			}
			for n, r := range l.Reservations {
				if len(r.Allocations) != tc.got[n] {
					t.Errorf("%s, dry run %t: reservation %d has %d hosts, want %d", tc.name, isDry, n,
						len(r.Allocations), tc.got[n])
				}
			}
		}
		write(t, conn, "delete from leases")
	}
	_, err := store.Check(t.Context(), reserving(time.Hour, domain.HostRequest{Min: 2, Max: 2},
		domain.HostRequest{Min: 2, Max: 2}))
	if apperr.CodeOf(err) != apperr.Unprocessable {
		t.Errorf("4 hosts of 3: %v", err)
	}
}

// TestTriesInsertNothing: neither a dry run nor a refusal inserts hosts that are rolled back.
func TestTriesInsertNothing(t *testing.T) {
	t.Parallel()
	store, conn := reservable(t, 50)
	create(t, store, reserving(24*time.Hour, domain.HostRequest{Min: 40, Max: 40}))
	inserted := countInserts(t, conn)
	one, all := domain.HostRequest{Min: 1, Max: 1}, domain.HostRequest{Min: 1, Max: 1000}
	most := domain.HostRequest{Min: 11, Max: 50}
	for _, tc := range []struct {
		name    string
		made    domain.NewLease
		refused bool
	}{
		{"one", reserving(24*time.Hour, one), false},
		{"all there are, and one", reserving(24*time.Hour, all, one), false},
		{"too many", reserving(24*time.Hour, most), true},
		{"too many, and one", reserving(24*time.Hour, most, one), true},
		{"more than there are", reserving(24*time.Hour, domain.HostRequest{Min: 51, Max: 51}), true},
	} {
		_, err := store.Check(t.Context(), tc.made)
		if n := inserted(); n != 0 || (err != nil) != tc.refused {
			t.Errorf("%s: a dry run inserts %d hosts: %v", tc.name, n, err)
		}
		if !tc.refused {
			continue
		}
		if _, err := store.Create(t.Context(), tc.made); err == nil || inserted() != 0 {
			t.Errorf("%s: a refusal inserts %d hosts: %v", tc.name, inserted(), err)
		}
	}
}

// TestRefusalsAgree compares what a dry run says of random leases with what can be booked then, and before.
func TestRefusalsAgree(t *testing.T) {
	t.Parallel()
	store, conn := reservable(t, 5)
	write(t, conn, `update nodes set vcpus = 16 where name <= 'n002'`)
	write(t, conn, `update nodes set traits = '{HW_CPU_X86_AVX512F}' where name in ('n001', 'n005')`)
	base := time.Now().Add(time.Hour).UTC().Truncate(time.Hour)
	wants := func() (all []domain.HostRequest) {
		for range 1 + rand.IntN(3) {
			want := domain.HostRequest{Min: 1 + rand.IntN(2), VCPUs: 32 * rand.IntN(2)}
			want.Max = want.Min + rand.IntN(3)
			if rand.IntN(3) == 0 {
				want.Traits = []string{"HW_CPU_X86_AVX512F"}
			}
			all = append(all, want)
		}
		return all
	}
	at := func(made domain.NewLease, start time.Time, hours int) domain.NewLease {
		made.Lease.ID = uuid.Must(uuid.NewV7())
		made.Lease.StartsAt, made.Lease.EndsAt = start, start.Add(time.Duration(hours)*time.Hour)
		return made
	}
	random := func() (domain.NewLease, int) {
		hours := 1 + rand.IntN(4)
		return at(reserving(0, wants()...), base.Add(time.Duration(rand.IntN(20))*time.Hour), hours), hours
	}
	for range 25 {
		made, _ := random()
		_, _ = store.Create(t.Context(), made)
	}
	moved := 0
	for range 20 {
		made, hours := random()
		free := made.Lease.StartsAt
		_, err := store.Check(t.Context(), made)
		if refusal, ok := errors.AsType[*domain.FreeError](err); ok {
			free = refusal.FreeAt
		} else if err != nil {
			t.Fatal(err)
		}
		for start := made.Lease.StartsAt; free.IsZero() && start.Before(base.Add(40*time.Hour)) ||
			!start.After(free); start = start.Add(time.Hour) {
			tried := at(made, start, hours)
			_, err := store.Create(t.Context(), tried)
			isFree := couldBook(t, conn, tried.Lease, err == nil)
			if (err == nil) != isFree || isFree != start.Equal(free) {
				t.Fatalf("%d reservations for %d hours at %s: free %t, said to be free at %s, booked: %v",
					len(made.Lease.Reservations), hours, start, isFree, free, err)
			}
			write(t, conn, "delete from leases where id = $1", tried.Lease.ID)
			if start.After(made.Lease.StartsAt) {
				moved++
			}
		}
	}
	if moved == 0 {
		t.Error("nothing was refused")
	}
}

// couldBook reports whether the reservations of a lease fit together onto hosts that no other lease has, by trying all
// ways.
func couldBook(t *testing.T, conn *pgx.Conn, lease domain.Lease, isBooked bool) bool {
	t.Helper()
	if isBooked && testkit.Scalar[int](t, conn, overlapsSQL) != 0 {
		t.Fatal("a host is booked twice")
	}
	var units [][]string // of each host that is needed: those that match
	for _, r := range lease.Reservations {
		names := testkit.Scalar[[]string](t, conn, `
select array(select name from nodes n where vcpus >= $1 and traits @> $2 and not exists (
    select from allocations a join reservations r on r.project_id = a.project_id and r.id = a.reservation_id
    where a.node = n.name and a.during && tstzrange($3, $4) and r.lease_id <> $5))`,
			r.Request.VCPUs, append([]string{}, r.Request.Traits...), lease.StartsAt, lease.EndsAt, lease.ID)
		for range r.Request.Min {
			units = append(units, names)
		}
	}
	used := map[string]bool{}
	var fits func(n int) bool
	fits = func(n int) bool {
		if n == len(units) {
			return true
		}
		for _, name := range units[n] {
			if used[name] {
				continue
			}
			used[name] = true
			if fits(n + 1) {
				return true
			}
			used[name] = false
		}
		return false
	}
	return fits(0)
}

// hostUp has one host up, and all others down.
func hostUp(t *testing.T, conn *pgx.Conn, name string) {
	t.Helper()
	write(t, conn, "update nodes set is_up = name = $1", name)
}

// TestReallocateLeavesOutOwnHosts: a host that the reservation had before, and that it has not returned, does not take
// the place of another.
func TestReallocateLeavesOutOwnHosts(t *testing.T) {
	t.Parallel()
	store, conn := reservable(t, 2)
	create(t, store, newLease(0, 1))
	l, claim := claimOne(t, store)
	r, old := l.Reservations[0], l.Reservations[0].Allocations[0].Node
	noError(t, store.Prepared(t.Context(), claim, r, old))
	other := map[string]string{"n001": "n002", "n002": "n001"}[old]
	hostUp(t, conn, other)
	if to, ok, err := store.Reallocate(t.Context(), claim, *l, r, old); err != nil || !ok || to != other {
		t.Fatalf("got %q %t %v", to, ok, err)
	}
	hostUp(t, conn, old)
	write(t, conn, `update allocations set during = tstzrange(now() - interval '1 hour', now() - interval '1 minute')
where node = $1`, old)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if to, ok, err := store.Reallocate(ctx, claim, *l, r, other); err != nil || ok {
		t.Errorf("got %q %t %v", to, ok, err)
	}
}

// TestExtendedLeaseKeepsReplacedHosts: a host that was replaced, and that may have servers of the reservation, stays
// its until the new end, unless another lease has it then.
func TestExtendedLeaseKeepsReplacedHosts(t *testing.T) {
	t.Parallel()
	store, conn := reservable(t, 2)
	l := create(t, store, newLease(0, 1))
	claimed, claim := claimOne(t, store)
	r, old := claimed.Reservations[0], claimed.Reservations[0].Allocations[0].Node
	other := map[string]string{"n001": "n002", "n002": "n001"}[old]
	noError(t, store.Prepared(t.Context(), claim, r, old))
	hostUp(t, conn, other)
	if _, ok, err := store.Reallocate(t.Context(), claim, *claimed, r, old); err != nil || !ok {
		t.Fatalf("got %t %v", ok, err)
	}
	write(t, conn, "update nodes set is_up = true")
	write(t, conn, "update leases set status = 'active', claim_id = null, claimed_until = null")
	extend := func(hours int) {
		t.Helper()
		before := must(store.Get(t.Context(), "p1", l.ID))(t)
		after := before
		after.EndsAt = l.EndsAt.Add(time.Duration(hours) * time.Hour)
		must(store.Change(t.Context(), before, after, nil, domain.LeaseRules{}))(t)
	}
	end := func(host string) time.Time {
		return testkit.Scalar[time.Time](t, conn,
			"select upper(during) from allocations where reservation_id = $1 and node = $2", r.ID, host)
	}
	extend(1)
	if at := end(old); !at.Equal(l.EndsAt.Add(time.Hour)) {
		t.Errorf("the replaced host is the lease's until %s, which ends at %s", at, l.EndsAt.Add(time.Hour))
	}
	next := newLease(0, 1)
	next.Lease.StartsAt, next.Lease.EndsAt = l.EndsAt.Add(time.Hour), l.EndsAt.Add(5*time.Hour)
	hostUp(t, conn, old)
	write(t, conn, "update nodes set pool = case when name = $1 then 'reservable' else 'leaving' end", old)
	create(t, store, next)
	extend(3)
	if at := end(other); !at.Equal(l.EndsAt.Add(3 * time.Hour)) {
		t.Errorf("another lease has the host that was replaced, and this one ends at %s", at)
	}
}

// TestHeldHosts: a host that its lease has not returned some time after its end is not booked for what begins soon.
// Until then it is the last one that is chosen.
func TestHeldHosts(t *testing.T) {
	t.Parallel()
	store, conn := reservable(t, 2)
	create(t, store, newLease(0, 1))
	l, claim := claimOne(t, store)
	r, held := l.Reservations[0], l.Reservations[0].Allocations[0].Node
	noError(t, store.Prepared(t.Context(), claim, r, held))
	write(t, conn, "update nodes set vcpus = 16 where name = $1", held) // it would be chosen first
	back := testkit.Scalar[time.Time](t, conn, "select date_trunc('day', now(), 'UTC') + interval '2 days'")
	ended := func(minutes int) {
		write(t, conn, `
update allocations set during = tstzrange(now() - interval '2 hours', now() - $1 * interval '1 minute')
where reservation_id = $2`, minutes, r.ID)
	}
	free := func(hosts int) time.Time {
		t.Helper()
		slots, err := store.Availability(t.Context(), domain.FreeQuery{
			Hosts: hosts, Length: period(t, "PT1H"), From: l.StartsAt, Until: l.StartsAt.AddDate(1, 0, 0), Limit: 1,
		})
		if err != nil || len(slots) != 1 {
			t.Fatalf("got %+v %v", slots, err)
		}
		return slots[0].From
	}
	ended(10)
	for _, wants := range [][]domain.HostRequest{{{Min: 1, Max: 1}}, {{Min: 1, Max: 1}, {Min: 1, Max: 1}}} {
		made := create(t, store, reserving(0, wants...))
		host := made.Reservations[0].Allocations[0].Node
		if len(wants) == 1 && host == held {
			t.Error("a host that its lease may still return is chosen, and another one is free")
		}
		write(t, conn, "delete from leases where id = $1", made.ID)
	}
	ended(20)
	if at := free(2); !at.Equal(back) {
		t.Errorf("two are free at %s, want %s", at, back)
	}
	for _, wants := range [][]domain.HostRequest{{{Min: 2, Max: 2}}, {{Min: 1, Max: 1}, {Min: 1, Max: 1}}} {
		made := reserving(time.Minute, wants...)
		for _, book := range []func(context.Context, domain.NewLease) (domain.Lease, error){store.Check, store.Create} {
			_, err := book(t.Context(), made)
			refusal, ok := errors.AsType[*domain.FreeError](err)
			if !ok || !refusal.FreeAt.Equal(back) {
				t.Errorf("%d reservations: got %v, want a refusal until %s", len(wants), err, back)
			}
		}
		made.Lease.StartsAt, made.Lease.EndsAt = back, back.Add(time.Hour)
		if _, err := store.Check(t.Context(), made); err != nil {
			t.Errorf("what is free is refused: %v", err)
		}
	}
	create(t, store, newLease(0, 1)) // the other one
	noError(t, store.Released(t.Context(), claim, r, held))
	create(t, store, newLease(0, 1))
}

// TestBookingUnequalHosts: each of the clients of three processes gets one of as many hosts, although the hosts differ
// in size, so that all clients try the smallest one first.
func TestBookingUnequalHosts(t *testing.T) {
	t.Parallel()
	const clients = 48
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	addNodes(t, conn, clients)
	must(conn.Exec(t.Context(), "update nodes set vcpus = 32 + right(name, 3)::int"))(t)
	var stores []postgres.Leases
	for range 3 {
		db := must(postgres.Open(postgres.Config{URL: domain.Secret(database), MaxConns: clients / 3}, nil))(t)
		t.Cleanup(db.Close)
		stores = append(stores, postgres.Leases{DB: db})
	}
	var all sync.WaitGroup
	start := make(chan struct{})
	for n := range clients {
		made := newLease(0, 1)
		made.Lease.ProjectID = fmt.Sprintf("p%d", n)
		all.Go(func() {
			<-start
			if _, err := stores[n%3].Create(t.Context(), made); err != nil {
				t.Errorf("client %d: %v", n, err)
			}
		})
	}
	close(start)
	all.Wait()
	wantValue(t, conn, 0, "%d overlap", overlapsSQL)
}
