package postgres_test

import (
	"errors"
	"slices"
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

// claimOne claims the only due lease.
func claimOne(t *testing.T, store postgres.Leases) (*domain.Lease, domain.Claim) {
	t.Helper()
	due, claim, err := take(t.Context(), store.Queue(), long, 10)
	if err != nil || len(due) != 1 || !claim.Acquired {
		t.Fatalf("claimed %d leases: %v", len(due), err)
	}
	return &due[0], claim
}

func create(t *testing.T, store postgres.Leases, made domain.NewLease) domain.Lease {
	t.Helper()
	return must(store.Create(t.Context(), made))(t)
}

func write(t *testing.T, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	must(conn.Exec(t.Context(), sql, args...))(t)
}

// TestLeaseLife takes a lease of two hosts from its start to its end, as run-leases does.
func TestLeaseLife(t *testing.T) {
	t.Parallel()
	store, conn := reservable(t, 3)
	made := newLease(0, 2)
	delegated := newConnection()
	made.Connection, made.Rules.Cleaning = &delegated, time.Hour
	create(t, store, made)
	l, claim := claimOne(t, store)
	r := &l.Reservations[0]
	l.Status = domain.LeaseStarting
	noError(t, store.SaveStep(t.Context(), claim, l, long))
	nodes := []string{r.Allocations[0].Node, r.Allocations[1].Node}
	noError(t, store.Prepared(t.Context(), claim, *r, nodes...))
	r.AggregateID, r.Status, r.Flavors = 7, domain.ReservationActive, []domain.LeasedFlavor{{ID: "f", Name: "n"}}
	l.Status, l.StartResult, l.StartedAt, l.DueAt = domain.LeaseActive, domain.StepDone, l.CreatedAt, l.EndsAt
	noError(t, store.Save(t.Context(), claim, l))
	shown, err := store.Get(t.Context(), "p1", l.ID)
	if err != nil || shown.Status != domain.LeaseActive || shown.Reservations[0].AggregateID != 7 ||
		len(shown.Reservations[0].Flavors) != 1 || shown.Version != 3 || shown.Seq != 3 {
		t.Errorf("active is %+v: %v", shown, err)
	}
	if due, _, err := take(t.Context(), store.Queue(), long, 10); err != nil || len(due) != 0 {
		t.Errorf("due before its end: %v %v", due, err)
	}
	must(store.End(t.Context(), "p1", l.ID, "", nil))(t)
	l, claim = claimOne(t, store)
	r = &l.Reservations[0]
	noError(t, store.Released(t.Context(), claim, *r, nodes...))
	l.Status, l.EndResult = domain.LeaseEnded, domain.StepDone
	noError(t, store.Finish(t.Context(), claim, l))
	shown, err = store.Get(t.Context(), "p1", l.ID)
	if err != nil || shown.Status != domain.LeaseEnded || shown.EndedAt.IsZero() || !shown.DueAt.IsZero() ||
		shown.Reservations[0].Status != domain.ReservationEnded {
		t.Errorf("ended is %+v: %v", shown, err)
	}
	events := testkit.Scalar[[]string](t, conn, `select array_agg(seq || ' ' || (data->>'status') || ' ' ||
coalesce(data->>'previous_status', '') order by seq) from events where subject = $1`, l.ID.String())
	if want := []string{
		"1 pending ", "2 starting pending", "3 active starting", "4 ending active", "5 ended ending",
	}; !slices.Equal(events, want) {
		t.Errorf("its events are %v", events)
	}
	wantValue(t, conn, "deleted", "its connection is %s", "select status from connections")
	// the cleaning takes an hour from now on, and not from the end that was booked
	if free := testkit.Scalar[bool](t, conn, `select bool_and(upper(during) between clock_timestamp() + interval '59 minutes'
		and clock_timestamp() + interval '61 minutes' and released_at is not null) from allocations`); !free {
		t.Error("the hosts are not free after the cleaning")
	}
}

// TestLeaseFencing: a replica whose claim another replica has acquired writes nothing.
func TestLeaseFencing(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	store, conn := postgres.Leases{DB: open(t, database)}, testkit.Connect(t, database)
	addNodes(t, conn, 3)
	create(t, store, newLease(0, 1))
	old, oldClaim := claimOne(t, store)
	write(t, conn, "update leases set claimed_until = now() - interval '1 second'")
	l, claim := claimOne(t, store)
	before := testkit.Dump(t, database)
	old.Status, old.Reservations[0].AggregateID = domain.LeaseStarting, 9
	over := *old
	over.Status = domain.LeaseEnded
	_, _, moved := store.Reallocate(t.Context(), oldClaim, *old, old.Reservations[0],
		old.Reservations[0].Allocations[0].Node)
	for name, err := range map[string]error{
		"save":       store.Save(t.Context(), oldClaim, old),
		"save step":  store.SaveStep(t.Context(), oldClaim, old, long),
		"finish":     store.Finish(t.Context(), oldClaim, &over),
		"prepared":   store.Prepared(t.Context(), oldClaim, old.Reservations[0], old.Reservations[0].Allocations[0].Node),
		"released":   store.Released(t.Context(), oldClaim, old.Reservations[0], old.Reservations[0].Allocations[0].Node),
		"reallocate": moved,
	} {
		if !errors.Is(err, domain.ErrFenced) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if after := testkit.Dump(t, database); after != before {
		t.Error("the replica without the claim has written something")
	}
	l.Status = domain.LeaseStarting
	noError(t, store.Save(t.Context(), claim, l))
}

// TestLeaseChangedMeanwhile: what a user requests while run-leases works on the lease is not overwritten.
func TestLeaseChangedMeanwhile(t *testing.T) {
	t.Parallel()
	store, _ := reservable(t, 1)
	create(t, store, newLease(0, 1))
	l, claim := claimOne(t, store)
	ended, err := store.End(t.Context(), "p1", l.ID, "", nil)
	if err != nil || ended.Status != domain.LeaseEnding {
		t.Fatalf("deleted while it is claimed: %+v %v", ended, err)
	}
	l.Status, l.DueAt, l.Reservations[0].AggregateID = domain.LeaseStarting, l.EndsAt, 9
	wantError(t, "got", store.SaveStep(t.Context(), claim, l, long), domain.ErrChanged)
	l, _ = claimOne(t, store)
	if l.Status != domain.LeaseEnding || l.Reservations[0].AggregateID != 9 {
		t.Errorf("it is %+v", l)
	}
}

// TestClaimLeases: replicas that claim concurrently get different leases, and at the same time ends come before starts.
func TestClaimLeases(t *testing.T) {
	t.Parallel()
	store, conn := reservable(t, 40)
	for range 40 {
		create(t, store, newLease(0, 1))
	}
	write(t, conn, `
update leases set status = 'active', starts_at = now() - interval '3 hours', ends_at = now() - interval '1 second'
where id in (select id from leases order by id desc limit 20)`)
	first, _, err := take(t.Context(), store.Queue(), long, 4)
	if err != nil || len(first) != 4 || slices.ContainsFunc(first, func(l domain.Lease) bool {
		return l.Status != domain.LeaseActive
	}) {
		t.Fatalf("first come %+v: %v", first, err)
	}
	var mu sync.Mutex
	var got []uuid.UUID
	concurrently(6, func(int) {
		for {
			found, claim, err := take(t.Context(), store.Queue(), long, 5)
			if err != nil || !claim.Acquired {
				if err != nil {
					t.Error(err)
				}
				return
			}
			isStart := func(l domain.Lease) bool { return l.Status == domain.LeasePending }
			if n := slices.IndexFunc(found, isStart); n >= 0 && slices.ContainsFunc(found[n:],
				func(l domain.Lease) bool { return !isStart(l) }) {
				t.Errorf("a start comes before an end: %+v", found)
			}
			mu.Lock()
			for _, l := range found {
				got = append(got, l.ID)
			}
			mu.Unlock()
		}
	})
	slices.SortFunc(got, func(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) })
	if len(got) != 36 || len(slices.Compact(got)) != 36 {
		t.Errorf("%d leases were claimed, some of them twice", len(got))
	}
}

// TestEndOfEndingLease: what happens at the end, and when it is tried, can be changed while a lease is ending and when
// its end has failed. A lease that is cancelled before its start stays that.
func TestEndOfEndingLease(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn, leases, ctx := testkit.Connect(t, database), postgres.Leases{DB: open(t, database)}, t.Context()
	addNodes(t, conn, 2)
	made := must(leases.Create(ctx, newLease(0, 2)))(t)
	exec := func(sql string) {
		t.Helper()
		must(conn.Exec(ctx, sql))(t)
	}
	exec(`update leases set status = 'active', start_result = 'done', started_at = now();
update allocations set prepared_at = now() where node = 'n001'`)
	ended, err := leases.End(ctx, "p1", made.ID, "", nil)
	if err != nil || ended.Status != domain.LeaseEnding || ended.EndingSince.IsZero() {
		t.Fatalf("ended: %+v, %v", ended, err)
	}
	if got := testkit.Scalar[[]string](t, conn, "select array_agg(node) from allocations"); len(got) != 1 {
		t.Errorf("booked are still %v: n002 was never prepared", got)
	}
	if _, err := leases.Create(ctx, newLease(0, 1)); err != nil {
		t.Errorf("the host that was never begun cannot be booked: %v", err)
	}
	const fail = "update leases set status = 'error', end_result = 'failed' where status = 'ending'"
	for _, failed := range []string{"", fail} {
		if failed != "" {
			exec(failed)
		}
		exec("update leases set ending_since = now() - interval '2 hours', attempts = 7 " +
			"where status in ('ending', 'error')")
		retried, err := leases.Retry(ctx, "p1", made.ID, nil, nil)
		if err != nil || retried.Status != domain.LeaseEnding || retried.Attempts != 0 || retried.EndResult != "" ||
			retried.StartResult != domain.StepDone || time.Since(retried.EndingSince) > time.Minute {
			t.Errorf("retried after %q: %+v, %v", failed, retried, err)
		}
		if failed != "" {
			exec(failed)
		}
		before := must(leases.Get(ctx, "p1", made.ID))(t)
		after := before
		if after.OnEnd = domain.OnEndSnapshotDelete; failed != "" {
			after.OnEnd = domain.OnEndShelve
		}
		changed, err := leases.Change(ctx, before, after, nil, domain.LeaseRules{})
		if err != nil || changed.OnEnd != after.OnEnd || changed.Status != before.Status || changed.DueAt.IsZero() {
			t.Errorf("changed after %q: %+v, %v", failed, changed, err)
		}
		before, after = changed, changed
		after.EndsAt = after.EndsAt.Add(time.Hour)
		_, err = leases.Change(ctx, before, after, nil, domain.LeaseRules{})
		if apperr.CodeOf(err) != apperr.Conflict {
			t.Errorf("extended after %q: %v", failed, err)
		}
		deleted, err := leases.End(ctx, "p1", made.ID, domain.OnEndDelete, nil)
		if err != nil || deleted.OnEnd != domain.OnEndDelete || deleted.Status != domain.LeaseEnding {
			t.Errorf("deleted after %q: %+v, %v", failed, deleted, err)
		}
	}
	if _, err := leases.End(ctx, "p1", made.ID, domain.OnEndNone, nil); apperr.CodeOf(err) != apperr.Invalid {
		t.Errorf("its user leaves servers on hosts: %v", err)
	}
	released, err := leases.Abandon(ctx, "p1", made.ID, nil)
	if err != nil || released.OnEnd != domain.OnEndNone || released.Status != domain.LeaseEnding {
		t.Errorf("released: %+v, %v", released, err)
	}

	mixed := newLease(time.Hour, 1)
	exec("insert into nodes (name, zone, pool, vcpus, ram_mb, disk_gb) values ('later', 'nova', 'reservable', 1, 1, 1)")
	mixed.Lease.Reservations = append(mixed.Lease.Reservations, domain.Reservation{
		ID: uuid.New(), Type: domain.InstanceReservation, InstanceID: addInstance(t, conn),
	})
	cancelled, err := leases.Create(ctx, mixed)
	if err != nil {
		t.Fatal(err)
	}
	exec("update reservations set was_running = true where instance_id is not null")
	if cancelled, err = leases.End(ctx, "p1", cancelled.ID, "", nil); err != nil {
		t.Fatal(err)
	}
	exec("update leases set starts_at = ending_since + interval '1 microsecond' " +
		"where start_result = '' and ending_since is not null")
	if cancelled, err = leases.Retry(ctx, "p1", cancelled.ID, nil, nil); err != nil ||
		!cancelled.EndingSince.Before(cancelled.StartsAt) {
		t.Errorf("a lease that was cancelled before its start: %+v, %v", cancelled, err)
	}
}

// TestLeaseIsWoken: what a lease waits for makes it due immediately, also when it happens while run-leases works on it.
func TestLeaseIsWoken(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	db, conn := open(t, database), testkit.Connect(t, database)
	store, actions := postgres.Leases{DB: db}, postgres.Actions{DB: db}
	delegated, instance := newConnection(), addInstance(t, conn)
	made := newLease(time.Hour, 1)
	made.Connection = &delegated
	made.Lease.Reservations = []domain.Reservation{{
		ID: uuid.New(), Type: domain.InstanceReservation, InstanceID: instance,
	}}
	create(t, store, made)
	another := newLease(2*time.Hour, 1) // which waits for nothing of that
	addNodes(t, conn, 1)
	create(t, store, another)
	write(t, conn, "update leases set due_at = starts_at")

	for _, happens := range []struct {
		what   string
		happen func()
	}{
		{"its action ends", func() {
			action, err := actions.Create(t.Context(), domain.DelegatedAction{
				ID: uuid.New(), ProjectID: "p1", ConnectionID: delegated.ID, InstanceID: instance, UserID: "u1",
				Request: domain.ActionRequest{Action: domain.Shelve},
			})
			if err != nil {
				t.Fatal(err)
			}
			write(t, conn, "update reservations set action_id = $1 where instance_id = $2", action.ID, instance)
			const running = "select count(*)::int from actions where status = 'running'"
			write(t, conn, "update actions set claimed_until = now() + interval '1 minute' where status = 'running'")
			err = actions.Abandon(t.Context(), action, nil)
			if err != nil || testkit.Scalar[int](t, conn, running) != 1 {
				t.Fatalf("what another replica does is abandoned: %v", err)
			}
			write(t, conn, "update actions set claimed_until = now() where status = 'running'")
			noError(t, actions.Abandon(t.Context(), action, nil))
		}},
		{"its instance changes", func() {
			write(t, conn, "update instances set state = case state when 'active' then 'stopped' else 'active' end")
		}},
		{"its connection ends", func() {
			write(t, conn, "update connections set status = 'active'")
			ended, err := postgres.Connections{DB: db}.End(t.Context(), "p1", delegated.ID, domain.ConnectionLost,
				"gone", true)
			if err != nil || !ended {
				t.Fatal(ended, err)
			}
		}},
	} {
		what, happen := happens.what, happens.happen
		happen()
		l, claim := claimOne(t, store)
		happen()
		l.DueAt = l.EndsAt
		noError(t, store.SaveStep(t.Context(), claim, l, long))
		l.DueAt = l.EndsAt
		noError(t, store.Save(t.Context(), claim, l))
		if next, err := store.Queue().NextDue(t.Context(), time.Minute, nil); err != nil || next == nil || *next > 0 {
			t.Errorf("%s while it is claimed: it is due in %v: %v", what, next, err)
		}
		l, claim = claimOne(t, store)
		l.DueAt = l.EndsAt
		noError(t, store.Save(t.Context(), claim, l))
		if next, err := store.Queue().NextDue(t.Context(), time.Minute, nil); err != nil || next != nil {
			t.Errorf("%s: it is due once more in %v: %v", what, next, err)
		}
	}
}

// TestLeasesOfNodeAreWoken: a reserved host that goes down, and one that is up again, makes its leases due immediately,
// and no others.
func TestLeasesOfNodeAreWoken(t *testing.T) {
	t.Parallel()
	store, conn := reservable(t, 2)
	for range 2 {
		create(t, store, newLease(0, 1))
	}
	write(t, conn, "update allocations set prepared_at = now()")
	write(t, conn, "update leases set status = 'active', due_at = ends_at")
	for _, status := range []string{"suspect", "down", "up"} {
		write(t, conn, "update nodes set status = $1 where name = (select min(node) from allocations)", status)
		want := 1
		if status == "suspect" {
			want = 0
		}
		if got := testkit.Scalar[int](t, conn, "select count(*)::int from leases where due_at <= now()"); got != want {
			t.Errorf("with a host that is %s %d leases are due, want %d", status, got, want)
		}
		write(t, conn, "update leases set due_at = ends_at")
	}
}
