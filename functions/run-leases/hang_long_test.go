package runleases

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLongPlacementHangs: while Placement accepts connections and does not answer, and 16 active leases of hosts are
// looked after, leases of instances start within 5 s of their time, and none waits for an event to end.
func TestLongPlacementHangs(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	rows := testkit.Pool(t, database)
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := rows.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	exec(`
with n as (
    insert into nodes (name, provider_id, zone, pool, status, vcpus, ram_mb, disk_gb)
    select 'held-' || n, gen_random_uuid()::text, 'nova', 'reservable', 'up', 8, 8192, 100 from generate_series(1, 16) n
    returning name
), l as (
    insert into leases (project_id, id, domain_id, user_id, name, status, starts_at, ends_at, before_end, on_end,
                        start_result, started_at, due_at)
    select 'p' || row_number() over (), gen_random_uuid(), 'd', 'u', name, 'active', now() - interval '1 day',
           now() + interval '1 day', '0', 'shelve', 'done', now() - interval '1 day', now() - interval '1 minute' from n
    returning *
), r as (
    insert into reservations (project_id, id, lease_id, position, type, status, want, trait)
    select project_id, id, id, 0, 'host', 'active', '{"min": 1, "max": 1}', 'CUSTOM_CLOUDFN_LEASE_' || n
    from (select *, row_number() over () as n from l) l
    returning *
)
insert into allocations (project_id, reservation_id, node, during, prepared_at)
select r.project_id, r.id, l.name, tstzrange(l.starts_at, l.ends_at), l.starts_at
from r join l on l.project_id = r.project_id and l.id = r.lease_id`)
	env := testkit.RedirectTo(t, map[string]string{"placement": testkit.Hanging(t)}).Env(t, "leases")
	account := map[string]string{}
	for name, value := range env {
		account["LEASES_"+name] = value
	}
	app := testkit.Start(t, testkit.Env(t, database, account), Function)
	for range 4 { // a tick each 20 s, and the next waits while one works
		go func() { _, _ = app.TryTick(t, "run-leases") }()
		id, instance := uuid.Must(uuid.NewV7()), uuid.New()
		exec(`
with i as (
    insert into instances (project_id, id, name, server_id, state, raw_status, origin, spec, seq, position)
    values ('q', $2::uuid, 'vm', $2::uuid::text, 'active', 'ACTIVE', 'connected', '{}', 1, 0)
), l as (
    insert into leases (project_id, id, domain_id, user_id, name, status, starts_at, ends_at, before_end, on_end, due_at)
    values ('q', $1::uuid, 'd', 'u', 'vm', 'pending', now() + interval '12 seconds', now() + interval '1 day', '0', 'shelve',
            now() + interval '12 seconds')
)
insert into reservations (project_id, id, lease_id, position, type, status, instance_id, prepared_at)
values ('q', $1::uuid, $1::uuid, 0, 'instance', 'pending', $2::uuid, now())`, id, instance)
		testkit.Eventually(t, time.Minute, "the lease is active", func() bool {
			return testkit.Scalar[string](t, rows, "select status from leases where id = $1", id) == "active"
		})
		late := testkit.Scalar[time.Duration](t, rows, "select started_at - starts_at from leases where id = $1", id)
		if t.Logf("it began %s after its start", late); late > 5*time.Second {
			t.Errorf("the lease began %s after its start", late)
		}
		time.Sleep(8 * time.Second)
	}
	if n := testkit.Scalar[int](t, rows, `
select count(*)::int from leases where name like 'held-%' and (attempts > 0 or claimed_until > now())`); n == 0 {
		t.Error("Placement does not hang: no lease of hosts waits for it")
	}
}
