package console

import (
	"context"
	"testing"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// calendar stores leases of the project in all the ways in which the page shows them. run-leases has no work with them.
func calendar(t *testing.T, database string, p *testkit.Project) {
	t.Helper()
	conn := testkit.Connect(t, database)
	for _, lease := range []struct{ name, status, problem, from, until, reservation string }{
		{"workshop", "active", "", "-1 day", "2 days", "host"},
		{"nightly", "pending", "", "1 day", "32 hours", "instance"},
		{
			"broken", "error", `{"code": "delegation_lost", "detail": "its user may not act here: a retry delegates anew"}`,
			"-2 days", "5 days", "instance",
		},
		{
			"stuck", "ending", `{"code": "conflict", "detail": "server db cannot be ended yet"}`, "-2 days", "-1 hour", "host",
		},
		{"exam", "starting", "", "0 hours", "9 days", "host"},
		{"past", "ended", "", "-3 days", "-1 day", "host"},
	} {
		_, err := conn.Exec(context.Background(), `
			with lease as (
				insert into leases (project_id, id, domain_id, user_id, name, status, problem, starts_at, ends_at, before_end,
					on_end)
				values ($1, gen_random_uuid(), $2, $3, $4, $5, nullif($6, '')::jsonb, now() + $7::interval,
					now() + $8::interval, '1 hour', 'shelve')
				returning id)
			insert into reservations (project_id, id, lease_id, position, type, instance_id, want, flavors)
			select $1, gen_random_uuid(), id, 0, $9, case when $9 = 'instance' then gen_random_uuid() end,
				case when $9 = 'host' then '{"min": 2, "max": 3}'::jsonb end, '[]' from lease`,
			p.ID, p.DomainID, p.UserID, lease.name, lease.status, lease.problem, lease.from, lease.until,
			lease.reservation)
		if err != nil {
			t.Fatal(err)
		}
	}
	// Two hosts are allocated to each reservation that is open.
	_, err := conn.Exec(context.Background(), `
		with hosts as (
			insert into nodes (name, pool) select id || '-' || n, 'leaving' from reservations, generate_series(1, 2) n
			where project_id = $1 and type = 'host' returning name)
		select from hosts`, p.ID)
	if err == nil {
		_, err = conn.Exec(context.Background(), `
			insert into allocations (project_id, reservation_id, node, during)
			select r.project_id, r.id, nodes.name, tstzrange(l.starts_at, l.ends_at) from reservations r
			join leases l on l.project_id = r.project_id and l.id = r.lease_id
			join nodes on nodes.name like r.id || '-%'
			where r.project_id = $1`, p.ID)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// reservable takes the sandbox's reservable hosts for the test, and stores that they are in the pool.
func reservable(t *testing.T, database string) {
	t.Helper()
	for _, host := range testkit.ReservableHosts(t) {
		if _, err := testkit.Connect(t, database).Exec(context.Background(),
			"insert into nodes (name, pool) values ($1, 'reservable')", host); err != nil {
			t.Fatal(err)
		}
	}
}
