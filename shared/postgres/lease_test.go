package postgres_test

import (
	"errors"
	"fmt"
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

// newLease is a lease of the project p1 with one reservation of so many hosts, which begins after the time given and
// takes an hour.
func newLease(in time.Duration, hosts int) domain.NewLease {
	start := time.Now().Add(in).UTC().Truncate(time.Second)
	return domain.NewLease{Lease: domain.Lease{
		ID: uuid.Must(uuid.NewV7()), ProjectID: "p1", DomainID: "d1", UserID: "u1", Name: "workshop",
		StartsAt: start, EndsAt: start.Add(time.Hour), OnEnd: domain.OnEndShelve,
		Reservations: []domain.Reservation{{
			ID: uuid.New(), Type: domain.HostReservation, Want: &domain.HostWant{Min: hosts, Max: hosts},
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
	database := testkit.Database(t)
	store, conn := postgres.Leases{DB: open(t, database)}, testkit.Connect(t, database)
	addNodes(t, conn, 3)
	made := newLease(time.Hour, 2)
	delegated := newConnection()
	made.Connection = &delegated
	instance := addInstance(t, conn)
	made.Lease.Reservations = append(made.Lease.Reservations, domain.Reservation{
		ID: uuid.New(), Type: domain.InstanceReservation, InstanceID: instance,
	})
	if _, err := store.Check(t.Context(), made); err != nil {
		t.Fatal(err)
	}
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from leases"); n != 0 {
		t.Error("a dry run stored a lease")
	}
	stored, err := store.Create(t.Context(), made)
	if err != nil {
		t.Fatal(err)
	}
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
		t.Errorf("somebody may use the connection of a lease: %v", err)
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
	if n := testkit.Scalar[int](t, conn, `select (select count(*) from allocations)::int
+ (select count(*) from connections where status <> 'deleted')::int + (select count(*) from reservations where is_open)::int
+ (select count(*) from instances where lease_id is not null)::int`); n != 0 {
		t.Errorf("%d parts of it are open", n)
	}
}
