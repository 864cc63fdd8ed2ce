package collectstats

import (
	"testing"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestTickDeletesOldRows, each kind as its variable says. What goes and what stays is tested where the statements are.
func TestTickDeletesOldRows(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	_, err := conn.Exec(t.Context(), `
insert into orders (project_id, id, domain_id, user_id, body_sha256, spec, status, updated_at)
select 'p', gen_random_uuid(), 'd', 'u', '', '{}', 'done', now() - n * interval '10 days' from generate_series(1, 3) n;
insert into instances (project_id, id, position, name, state, origin, updated_at)
select 'p', gen_random_uuid(), 0, 'n', 'deleted', 'connected', now() - n * interval '10 days' from generate_series(1,
  4) n;
insert into stats_hourly (project_id, hour, domain_id, running, total, by_status, source)
select 'p', date_trunc('hour', now(), 'UTC') - n * interval '10 days', 'd', 0, 0, '{}', 'sampled'
  from generate_series(1, 5) n`)
	if err != nil {
		t.Fatal(err)
	}
	app := testkit.Start(t, testkit.Env(t, database, map[string]string{
		"ALLOWED_PROJECTS": "none", "STATS_BACKFILL": "1h", "ORDERS_RETENTION": "240h", "INSTANCES_RETENTION": "600h", "STATS_RETENTION": "1000h",
	}), Function)
	if a := app.Tick(t, "collect-stats"); a.Status != 204 {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	const rows = `select 'orders', count(*) from orders union all select 'instances', count(*) from instances
union all select 'hours', count(*) from stats_hourly where project_id = 'p'`
	if got := testkit.Pairs(t, conn, rows); got["orders"] != 0 || got["instances"] != 2 || got["hours"] != 4 {
		t.Errorf("left are %v", got)
	}
}
