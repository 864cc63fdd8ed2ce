package runleases

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestRetire deletes leases that ended 90 days ago, with their reservations and hosts, with the function's own rights.
func TestRetire(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	rows := testkit.Pool(t, database)
	_, err := rows.Exec(t.Context(), `
with given (id, status, days) as (
    values (1, 'ended', 91), (2, 'cancelled', 91), (3, 'ended', 89), (4, 'error', 91)
), l as (
    insert into leases (project_id, id, domain_id, user_id, name, status, starts_at, ends_at, on_end, updated_at)
    select 'p', lpad(id::text, 32, '0')::uuid, 'd', 'u', status || days, status, now() - interval '200 days',
           case status when 'error' then now() + interval '1 day' else now() - interval '100 days' end, 'shelve',
           now() - make_interval(days => days)
    from given
    returning *
), r as (
    insert into reservations (project_id, id, lease_id, position, type, want)
    select project_id, id, id, 0, 'host', '{"min": 1, "max": 1}' from l returning *
)
insert into allocations (project_id, reservation_id, node, during)
select project_id, id, id::text, tstzrange(now() - interval '200 days', now() - interval '100 days') from r`)
	if err != nil {
		t.Fatal(err)
	}
	app := testkit.Start(t, testkit.Env(t, database, nil), Function) // with the rights that it declares
	for range 2 {
		if a := app.Tick(t, "run-leases"); a.Status != 204 {
			t.Errorf("got %d %s", a.Status, a.Body)
		}
	}
	for sql, want := range map[string]string{
		"select string_agg(name, ' ' order by name) from leases": "ended89 error91",
		"select count(*)::text from reservations":                "2",
		"select count(*)::text from allocations":                 "2",
		"select count(*)::text from jobs where key = 'retire'":   "1",
	} {
		if got := testkit.Scalar[string](t, rows, sql); got != want {
			t.Errorf("%s: got %s, want %s", sql, got, want)
		}
	}
}

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
		go func() { _, _ = app.TryTick(t, "run-leases") }() // one that came before might find nothing due, and end
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

// TestLongAdopt gives servers that were made directly in Nova one lease each, with the end that their metadata names,
// whatever replicas work concurrently, but none that has opted out.
func TestLongAdopt(t *testing.T) {
	t.Parallel()
	p, database := testkit.NewProject(t), testkit.Database(t)
	rows := testkit.Pool(t, database)
	plain, out := p.Create(t, "plain"), p.Create(t, "out", optOutTag)
	probe := p.Create(t, "cloudfn-probe-somewhere")
	named := p.Create(t, "named")
	p.Await(t, named, "ACTIVE") // Nova changes no metadata of a server that it is building
	p.SetMetadata(t, named, map[string]string{"lease_end": "2099-01-02T03:04:05Z", "lease_name": "until then"})
	env := testkit.Env(t, database, map[string]string{
		"LEASES_ADOPT": "P2D", "ALLOWED_PROJECTS": p.ID,
	})
	var first *testkit.Client
	for range 2 { // rounds of new processes
		first = testkit.Start(t, env, Function)
		second := testkit.Start(t, env, Function)
		var all sync.WaitGroup
		for _, app := range []*testkit.Client{first, second} {
			all.Go(func() { app.Tick(t, "run-leases") })
		}
		all.Wait()
		if _, err := rows.Exec(t.Context(), "delete from jobs"); err != nil { // the next round is due
			t.Fatal(err)
		}
	}
	for sql, want := range map[string]int{
		"select count(*)::int from instances":                                                             2,
		"select count(*)::int from instances where lease_id is not null and origin = 'connected'":         2,
		"select count(*)::int from reservations where type = 'instance'":                                  2,
		"select count(*)::int from leases where name = 'until then' and ends_at = '2099-01-02 03:04:05Z'": 1,
		`select count(*)::int from leases where connection_id is null and on_end = 'shelve' and name = 'plain'
		 and ends_at - starts_at = '2 days'`: 1,
	} {
		if got := testkit.Scalar[int](t, rows, sql); got != want {
			t.Errorf("%s: got %d, want %d (servers %s, %s, %s)", sql, got, want, plain, out, probe)
		}
	}
	const adopted = "select string_agg(server_id, ' ' order by server_id) from instances"
	want := []string{plain, named}
	slices.Sort(want)
	if got := testkit.Scalar[string](t, rows, adopted); got != strings.Join(want, " ") {
		t.Errorf("the servers %s were adopted, want %s", got, want)
	}
	// It is adopted once, even if its lease has ended and its instance is disconnected.
	if _, err := rows.Exec(t.Context(), `
with d as (update instances set disconnected_at = clock_timestamp(), lease_id = null)
delete from leases`); err != nil {
		t.Fatal(err)
	}
	if _, err := rows.Exec(t.Context(), "delete from jobs"); err != nil {
		t.Fatal(err)
	}
	testkit.Start(t, env, Function).Tick(t, "run-leases")
	if n := testkit.Scalar[int](t, rows, "select count(*)::int from leases"); n != 0 {
		t.Errorf("there are %d leases", n)
	}
}

// TestAdoptEverywhere refuses to adopt the servers of every project.
func TestAdoptEverywhere(t *testing.T) {
	t.Parallel()
	month, err := domain.ParsePeriod("P1M")
	if err != nil {
		t.Fatal(err)
	}
	err = AdoptConfig{Duration: month}.Validate()
	if err == nil || !strings.Contains(err.Error(), "ALLOWED_PROJECTS") {
		t.Errorf("got %v", err)
	}
}
