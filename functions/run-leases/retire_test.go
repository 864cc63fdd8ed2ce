package runleases

import (
	"testing"

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
