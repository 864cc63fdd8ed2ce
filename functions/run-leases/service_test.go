package runleases

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/due"
	"github.com/cloudfn/cloudfn/shared/leases"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// hangingCloud is a cloud whose EnsureFlavor takes until it is released or its context ends.
type hangingCloud struct {
	*fakeCloud

	hangs   chan struct{} // closed when the call has begun
	release chan struct{}
	ended   error
}

func (c *hangingCloud) EnsureFlavor(ctx context.Context, f domain.PrivateFlavor) error {
	close(c.hangs)
	select {
	case <-c.release:
		return c.fakeCloud.EnsureFlavor(ctx, f)
	case <-ctx.Done():
		c.ended = ctx.Err()
		return c.ended
	}
}

// TestCallLongerThanAClaim: the claim of a lease is renewed during a call to the cloud, and the call ends when another
// replica has the lease nevertheless.
func TestCallLongerThanAClaim(t *testing.T) {
	t.Parallel()
	for _, isFenced := range []bool{false, true} {
		w := newHostWorld(t)
		w.lease(t, nil)
		cloud := &hangingCloud{fakeCloud: w.cloud, hangs: make(chan struct{}), release: make(chan struct{})}
		store := postgres.Leases{DB: w.db}
		engine := leases.Engine{
			Store: store, Nodes: postgres.Nodes{DB: w.db}, Wake: func(...string) {}, RetryFor: time.Minute,
			ClaimFor: 4 * time.Second,
			Cloud:    func(context.Context) (leases.Cloud, error) { return cloud, nil },
		}
		claimed, err := store.Queue().Claim(t.Context(), engine.ClaimFor, 1, nil)
		if err != nil || len(claimed.Rows) != 1 {
			t.Fatalf("%d leases: %v", len(claimed.Rows), err)
		}
		done := make(chan error)
		row := claimed.Rows[0]
		kept, stop := due.Keep(t.Context(), claimed.Claim, engine.ClaimFor, row.Renew)
		defer stop()
		go func() { done <- engine.Run(kept, claimed.Claim, row.Value, time.Now().Add(time.Minute)) }()
		<-cloud.hangs
		until := func() time.Time {
			return testkit.Scalar[time.Time](t, w.rows, "select claimed_until from leases")
		}
		if isFenced {
			w.exec(t, "update leases set claim_id = gen_random_uuid()")
			if err := <-done; !errors.Is(err, domain.ErrFenced) || cloud.ended == nil {
				t.Errorf("fenced, the pass ended with %v, and its call with %v", err, cloud.ended)
			}
			continue
		}
		for range 2 {
			before := until()
			testkit.Eventually(t, time.Minute, "the claim is renewed", func() bool { return until().After(before) })
		}
		close(cloud.release)
		if err := <-done; err != nil {
			t.Errorf("the pass: %v", err)
		}
	}
}

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
