package postgres_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// addNodes makes so many equal reservable hosts: n001, n002, ...
func addNodes(t testing.TB, conn testkit.Querier, count int) {
	t.Helper()
	testkit.Scalar[int](t, conn, `
with added as (
    insert into nodes (name, zone, pool, vcpus, ram_mb, disk_gb, traits)
    select 'n' || to_char(n, 'FM000'), 'nova', 'reservable', 32, 65536, 1000, '{HW_CPU_X86_AVX2}'
    from generate_series(1, $1::int) n returning 1
) select count(*)::int from added`, count)
}

// reservable is a database with so many reservable hosts.
func reservable(t *testing.T, hosts int) (postgres.Leases, *pgx.Conn) {
	t.Helper()
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	addNodes(t, conn, hosts)
	return postgres.Leases{DB: open(t, database)}, conn
}

// newLease is a lease of the project p1 with one reservation of so many hosts, which begins after the time given and
// takes an hour.
func newLease(in time.Duration, hosts int) domain.NewLease {
	start := time.Now().Add(in).UTC().Truncate(time.Second)
	return domain.NewLease{Lease: domain.Lease{
		ID: uuid.Must(uuid.NewV7()), ProjectID: "p1", DomainID: "d1", UserID: "u1", Name: "workshop",
		StartsAt: start, EndsAt: start.Add(time.Hour), OnEnd: domain.OnEndShelve,
		Reservations: []domain.Reservation{{
			ID: uuid.New(), Type: domain.HostReservation, Request: &domain.HostRequest{Min: hosts, Max: hosts},
		}},
	}}
}

// addInstance makes an instance of p1 with a server.
func addInstance(t testing.TB, conn *pgx.Conn) uuid.UUID {
	t.Helper()
	id := uuid.Must(uuid.NewV7())
	_, err := conn.Exec(t.Context(), `
insert into instances (project_id, id, name, server_id, state, origin, spec, seq, position)
values ('p1', $1, 'vm', $2, 'active', 'connected', '{}', 1, 0)`, id, uuid.NewString())
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// TestCreateLease stores a lease with a connection, an instance and hosts, and shows it as it was stored.
func TestCreateLease(t *testing.T) {
	t.Parallel()
	store, conn := reservable(t, 3)
	made := newLease(time.Hour, 2)
	delegated := newConnection()
	made.Connection = &delegated
	instance := addInstance(t, conn)
	made.Lease.Reservations = append(made.Lease.Reservations, domain.Reservation{
		ID: uuid.New(), Type: domain.InstanceReservation, InstanceID: instance,
	})
	must(store.Check(t.Context(), made))(t)
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from leases"); n != 0 {
		t.Error("a dry run stored a lease")
	}
	stored := must(store.Create(t.Context(), made))(t)
	if len(stored.Reservations) != 2 || len(stored.Reservations[0].Allocations) != 2 ||
		stored.ConnectionID != delegated.ID || stored.Status != domain.LeasePending || stored.DueAt.IsZero() {
		t.Errorf("stored is %+v", stored)
	}
	connections := postgres.Connections(store)
	c, err := connections.Get(t.Context(), delegator, delegated.ID)
	if err != nil || c.LeaseID != made.Lease.ID {
		t.Errorf("the connection of a lease is %+v: %v", c, err)
	}
	if _, _, err := connections.Usable(t.Context(), delegator, delegated.ID); apperr.CodeOf(err) != apperr.NotFound {
		t.Errorf("someone may use the connection of a lease: %v", err)
	}
	event := testkit.Scalar[string](t, conn, `select concat_ws(' ', type, seq, data->>'status', data->'instance_ids')
		from events where subject = $1`, made.Lease.ID.String())
	if event != fmt.Sprintf(`cloudfn.lease.state.v1 1 pending [%q]`, instance) {
		t.Errorf("its event is %s", event)
	}
	other := newLease(90*time.Minute, 2)
	_, err = store.Create(t.Context(), other)
	var refusal *domain.FreeError
	if !errors.As(err, &refusal) || !refusal.FreeAt.Equal(made.Lease.EndsAt) {
		t.Errorf("2 hosts while 1 is free: %v", err)
	}
	many := newLease(time.Hour, 4)
	if _, err = store.Create(t.Context(), many); !errors.As(err, &refusal) || !refusal.FreeAt.IsZero() {
		t.Errorf("4 hosts of 3: %v", err)
	}
	again := newLease(90*time.Minute, 1)
	again.Lease.Reservations = []domain.Reservation{{
		ID: uuid.New(), Type: domain.InstanceReservation, InstanceID: instance,
	}}
	_, err = store.Create(t.Context(), again)
	if want := fmt.Sprintf("reservations[0].instance_id: instance %s is in lease %s then: begin later, or change or "+
		"delete that lease", instance, made.Lease.ID); apperr.
		CodeOf(err) != apperr.Conflict || apperr.As(err).Message != want {
		t.Errorf("a leased instance: %v", err)
	}
	shown, err := store.Get(t.Context(), "p1", made.Lease.ID)
	if err != nil || shown.Name != "workshop" || len(shown.Reservations) != 2 {
		t.Errorf("shown is %+v: %v", shown, err)
	}
	page, err := store.List(t.Context(), "p1", domain.LeaseQuery{
		Statuses: []domain.LeaseStatus{domain.LeasePending}, Name: "SHOP", Type: domain.InstanceReservation, Limit: 5,
	})
	if err != nil || len(page) != 1 {
		t.Errorf("listed are %+v: %v", page, err)
	}
	ended, err := store.End(t.Context(), "p1", made.Lease.ID, "", nil)
	if err != nil || ended.Status != domain.LeaseCancelled {
		t.Errorf("ended is %+v: %v", ended, err)
	}
	wantValue(t, conn, 0, "%d parts of it are open", `select (select count(*) from allocations)::int
+ (select count(*) from connections where status <> 'deleted')::int + (select count(*) from reservations where is_open)::int
+ (select count(*) from instances where lease_id is not null)::int`)
}

// TestChangePendingLease: all of a pending lease can change, and its hosts may.
func TestChangePendingLease(t *testing.T) {
	t.Parallel()
	store, conn := reservable(t, 2)
	l := create(t, store, newLease(time.Hour, 1))
	own := l.Reservations[0].Allocations[0].Node
	other := newLease(0, 2) // both hosts, later
	other.Lease.StartsAt, other.Lease.EndsAt = l.EndsAt.Add(time.Hour), l.EndsAt.Add(2*time.Hour)
	create(t, store, other)
	after := l
	after.Name, after.OnEnd, after.BeforeEnd = "course", domain.OnEndDelete, time.Minute
	after.StartsAt, after.EndsAt = l.StartsAt.Add(10*time.Minute), l.EndsAt.Add(time.Hour)
	changed, err := store.Change(t.Context(), l, after, nil, domain.LeaseRules{})
	if err != nil || changed.Name != "course" || changed.OnEnd != domain.OnEndDelete ||
		changed.BeforeEnd != time.Minute || !changed.EndsAt.Equal(after.EndsAt) || changed.Version != 2 ||
		changed.Reservations[0].Allocations[0].Node != own ||
		!changed.Reservations[0].Allocations[0].From.Equal(after.StartsAt) {
		t.Fatalf("changed is %+v: %v", changed, err)
	}
	later := changed
	later.EndsAt = changed.EndsAt.Add(time.Minute) // into the other lease
	_, err = store.Change(t.Context(), changed, later, nil, domain.LeaseRules{})
	refusal, ok := errors.AsType[*domain.FreeError](err)
	if !ok || !refusal.FreeAt.Equal(other.Lease.EndsAt) {
		t.Errorf("into another lease: %v", err)
	}
	if shown, err := store.Get(t.Context(), "p1", l.ID); err != nil || !shown.EndsAt.Equal(changed.EndsAt) ||
		len(shown.Reservations[0].Allocations) != 1 {
		t.Errorf("after the refusal it is %+v: %v", shown, err)
	}
	// another lease needs its host: then it takes the other one
	write(t, conn, "update allocations set node = 'n001' where reservation_id = $1", l.Reservations[0].ID)
	write(t, conn, "delete from allocations where node = 'n002'")
	moved := changed
	moved.StartsAt, moved.EndsAt = other.Lease.StartsAt, other.Lease.EndsAt
	changed, err = store.Change(t.Context(), changed, moved, nil, domain.LeaseRules{})
	if err != nil || changed.Reservations[0].Allocations[0].Node != "n002" {
		t.Errorf("moved is %+v: %v", changed, err)
	}
	for name, tc := range map[string]struct {
		after domain.Lease
		field string
	}{
		"long":    {func() domain.Lease { l := changed; l.EndsAt = l.StartsAt.Add(49 * time.Hour); return l }(), "end"},
		"nothing": {func() domain.Lease { l := changed; l.EndsAt = l.StartsAt; return l }(), "end"},
		"warning": {func() domain.Lease { l := changed; l.BeforeEnd = time.Hour; return l }(), "before_end"},
	} {
		_, err := store.Change(t.Context(), changed, tc.after, nil, domain.LeaseRules{Longest: 48 * time.Hour})
		if e := apperr.As(err); e.Code != apperr.Invalid || e.Fields[0].Field != tc.field {
			t.Errorf("%s: %v", name, err)
		}
	}
	wantCode(t, "from another project", errOf(store.Change(t.Context(), domain.Lease{ProjectID: "p2", ID: l.ID}, l, nil,
		domain.LeaseRules{})), apperr.NotFound)
}

// TestChangeActiveLease: only the end, the warning and the name of an active lease can change, and it keeps its hosts.
func TestChangeActiveLease(t *testing.T) {
	t.Parallel()
	store, conn := reservable(t, 2)
	create(t, store, newLease(0, 1))
	write(t, conn, "update allocations set node = 'n001'")
	l, claim := claimOne(t, store)
	l.Status, l.StartResult, l.DueAt = domain.LeaseStarting, domain.StepDone, l.EndsAt
	noError(t, store.Save(t.Context(), claim, l))
	next := newLease(0, 2)
	next.Lease.StartsAt, next.Lease.EndsAt = l.EndsAt.Add(time.Hour), l.EndsAt.Add(2*time.Hour)
	create(t, store, next)
	longer := *l
	longer.EndsAt = l.EndsAt.Add(45 * time.Minute)
	rules := domain.LeaseRules{Cleaning: 15 * time.Minute}
	changed, err := store.Change(t.Context(), *l, longer, nil, rules)
	if err != nil || !changed.EndsAt.Equal(longer.EndsAt) ||
		!changed.Reservations[0].Allocations[0].Until.Equal(next.Lease.StartsAt) ||
		!changed.Reservations[0].Allocations[0].From.Equal(l.StartsAt) {
		t.Fatalf("extended is %+v: %v", changed, err)
	}
	longer.EndsAt = next.Lease.EndsAt
	_, err = store.Change(t.Context(), changed, longer, nil, rules)
	refusal, ok := errors.AsType[*domain.FreeError](err)
	if !ok || !refusal.EndsBy.Equal(changed.EndsAt) || apperr.CodeOf(err) != apperr.Conflict {
		t.Errorf("into another lease: %v", err)
	}
	moved := changed
	moved.StartsAt = moved.StartsAt.Add(time.Minute)
	if _, err = store.Change(t.Context(), changed, moved, nil, rules); apperr.CodeOf(err) != apperr.Conflict ||
		!strings.Contains(err.Error(), "start: cannot change") {
		t.Errorf("another start: %v", err)
	}
	must(store.End(t.Context(), "p1", l.ID, "", nil))(t)
	shown, err := store.Get(t.Context(), "p1", l.ID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = store.Change(t.Context(), shown, shown, nil, rules); apperr.CodeOf(err) != apperr.Conflict {
		t.Errorf("while it is ending: %v", err)
	}
}

// TestLeaseGetsAnotherConnection: the old one ends, and its actions go on with the new one.
func TestLeaseGetsAnotherConnection(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	db, conn := open(t, database), testkit.Connect(t, database)
	store, actions := postgres.Leases{DB: db}, postgres.Actions{DB: db}
	made := newLease(time.Hour, 1)
	made.Lease.Reservations = []domain.Reservation{{
		ID: uuid.New(), Type: domain.InstanceReservation, InstanceID: addInstance(t, conn),
	}}
	first, second := newConnection(), newConnection()
	first.ExpiresAt = made.Lease.EndsAt.Add(time.Hour).Truncate(time.Second)
	made.Connection = &first
	l := create(t, store, made)
	action := domain.DelegatedAction{
		ProjectID: "p1", ID: uuid.New(), ConnectionID: first.ID, InstanceID: made.Lease.Reservations[0].InstanceID,
		UserID: "u1", Request: domain.ActionRequest{Action: domain.Start}, BodySHA256: []byte("start"),
	}
	for n := range 2 {
		if stored, err := actions.Create(t.Context(), action); err != nil || stored.Repeated != (n == 1) {
			t.Fatalf("an action of a lease: %+v %v", stored, err)
		}
	}
	work, err := (postgres.Delegations{DB: db}).Work(t.Context(), 10)
	if err != nil || len(work) != 1 || work[0].LeaseID != l.ID {
		t.Errorf("run-connections finds %+v: %v", work, err)
	}
	longer := l
	longer.EndsAt = first.ExpiresAt.Add(time.Hour)
	if _, err := store.Change(t.Context(), l, longer, nil, domain.LeaseRules{}); apperr.CodeOf(err) != apperr.Conflict {
		t.Errorf("longer than its connection: %v", err)
	}
	changed, err := store.Change(t.Context(), l, longer, &second, domain.LeaseRules{})
	if err != nil || changed.ConnectionID != second.ID {
		t.Fatalf("changed is %+v: %v", changed, err)
	}
	if left := testkit.Scalar[string](t, conn, `
select c.status || ' ' || a.connection_id from connections c, actions a where c.id = $1`, first.ID); left !=
		"deleted "+second.ID.String() {
		t.Errorf("left is %s", left)
	}
	wantValue(t, conn, 0, "the connections of a lease have %d events",
		"select count(*)::int from events where type = 'cloudfn.connection.state.v1'")
	connections := postgres.Connections{DB: db}
	list, err := connections.List(t.Context(), delegator, domain.ConnectionQuery{Of: []string{"lease"}, Limit: 10})
	if err != nil || len(list) != 1 || list[0].ID != second.ID {
		t.Errorf("listed are %+v: %v", list, err)
	}
	wantCode(t, "it can be used", errOf2(connections.Usable(t.Context(), delegator, second.ID)), apperr.NotFound)
	wantCode(t, "it can be suspended", errOf(connections.Suspend(t.Context(), "p1", second.ID, true)), apperr.NotFound)
}

// TestLeaseRules: the operator's limits, and an instance of another project, which is not there.
func TestLeaseRules(t *testing.T) {
	t.Parallel()
	store, conn := reservable(t, 5)
	rules := domain.LeaseRules{PerProject: 2, Longest: time.Hour}
	made := newLease(time.Hour, 1)
	made.Rules = rules
	first := create(t, store, made)
	for name, tc := range map[string]struct {
		change func(l *domain.Lease)
		field  string
	}{
		"too long": {func(l *domain.Lease) { l.EndsAt = l.EndsAt.Add(time.Second) }, "end"},
		"backward": {func(l *domain.Lease) { l.EndsAt = l.StartsAt.Add(-time.Second) }, "end"},
		"warning":  {func(l *domain.Lease) { l.BeforeEnd = time.Hour }, "before_end"},
		"instance": {func(l *domain.Lease) {
			l.Reservations[0] = domain.Reservation{
				ID: uuid.New(), Type: domain.InstanceReservation, InstanceID: uuid.New(),
			}
		}, "reservations[0].instance_id"},
	} {
		bad := newLease(time.Hour, 1)
		bad.Rules = rules
		tc.change(&bad.Lease)
		if _, err := store.Create(t.Context(), bad); apperr.CodeOf(err) != apperr.Invalid ||
			apperr.As(err).Fields[0].Field != tc.field {
			t.Errorf("%s: %v", name, err)
		}
	}
	made = newLease(time.Hour, 1)
	made.Rules = rules
	create(t, store, made)
	made = newLease(time.Hour, 1)
	made.Rules = rules
	wantCode(t, "a third lease", errOf(store.Create(t.Context(), made)), apperr.Conflict)
	must(store.End(t.Context(), "p1", first.ID, "", nil))(t)
	create(t, store, made)
	wantValue(t, conn, 2, "%d hosts are allocated", "select count(*)::int from allocations")
}

// TestLeaseWarning is written once, and once more when the end moves.
func TestLeaseWarning(t *testing.T) {
	t.Parallel()
	store, conn := reservable(t, 1)
	made := newLease(0, 1)
	made.Lease.BeforeEnd = 10 * time.Minute
	create(t, store, made)
	l, claim := claimOne(t, store)
	for range 2 {
		l.WarnedAt = l.CreatedAt
		if err := store.SaveStep(t.Context(), claim, l, long); err != nil || l.WarnedAt.Equal(l.CreatedAt) {
			t.Fatal(err)
		}
	}
	l.Status, l.WarnedAt = domain.LeaseStarting, time.Time{}
	noError(t, store.Save(t.Context(), claim, l))
	data := testkit.Scalar[string](t, conn,
		"select string_agg(data->>'on_end', ' ') from events where type = 'cloudfn.lease.before_end.v1'")
	if data != "shelve" {
		t.Errorf("the warnings are %q", data)
	}
	after := *l
	after.EndsAt = after.EndsAt.Add(time.Hour)
	changed, err := store.Change(t.Context(), *l, after, nil, domain.LeaseRules{})
	if err != nil || !changed.WarnedAt.IsZero() || changed.Version != l.Version+1 {
		t.Errorf("changed is %+v: %v", changed, err)
	}
	if _, err := store.Change(t.Context(), *l, after, nil, domain.LeaseRules{}); !errors.Is(err, domain.ErrChanged) {
		t.Errorf("changed from an old version: %v", err)
	}
}

// TestLostLease: a lease whose connection is lost is due once, and can be retried with another connection.
func TestLostLease(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	db, conn := open(t, database), testkit.Connect(t, database)
	store := postgres.Leases{DB: db}
	made := newLease(time.Hour, 1)
	made.Lease.Reservations = []domain.Reservation{{
		ID: uuid.New(), Type: domain.InstanceReservation, InstanceID: addInstance(t, conn),
	}}
	delegated := newConnection()
	made.Connection = &delegated
	create(t, store, made)
	l, claim := claimOne(t, store)
	l.DueAt = l.StartsAt
	noError(t, store.Save(t.Context(), claim, l))
	connections := postgres.Connections{DB: db}
	must(connections.End(t.Context(), "p1", delegated.ID, domain.ConnectionLost, "gone", true))(t)
	l, claim = claimOne(t, store)
	l.Status, l.DueAt = domain.LeaseError, l.EndsAt
	l.Problem = &domain.Problem{Code: "delegation_lost", Detail: "gone"}
	noError(t, store.Save(t.Context(), claim, l))
	if due, _, err := take(t.Context(), store.Queue(), long, 10); len(due) != 0 || err != nil {
		t.Errorf("%v are due once more: %v", due, err)
	}
	another := newConnection()
	retried, err := store.Retry(t.Context(), "p1", l.ID, &another, nil)
	if err != nil || retried.Status != domain.LeasePending || retried.Problem != nil ||
		retried.ConnectionID != another.ID || retried.Reservations[0].Status != domain.ReservationPending {
		t.Errorf("retried is %+v: %v", retried, err)
	}
	wantCode(t, "retried once more", errOf(store.Retry(t.Context(), "p1", l.ID, nil, nil)), apperr.Conflict)
}
