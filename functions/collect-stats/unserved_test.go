package collectstats

import (
	"maps"
	"testing"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestUnservedProjects: what a project has left that is taken off the lists is suspended, with events, and resumed when
// it is back. What an owner has suspended stays so.
func TestUnservedProjects(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	if _, err := conn.Exec(t.Context(), `
insert into callbacks (project_id, id, user_id, url, events, status, secret, reason)
select p, gen_random_uuid(), 'u', 'https://' || s || '.example.com', '{x}', case when s = 'own' then 'suspended' else s end, 's',
       case when s = 'own' then 'its owner has suspended it' else '' end
from unnest('{kept,gone,far,unknown}'::text[]) p, unnest('{verified,pending,own}'::text[]) s;
insert into connections (project_id, id, domain_id, user_id, kind, delegation_id, acts_as, actions, usable_by, status,
                         expires_at, next_check_at, managed, suspended_at)
select p, gen_random_uuid(), case when p = 'far' then 'd2' else 'd1' end, 'u', 'trust', 't', '{}', '{start}', '{}', 'active',
       now() + interval '1 day', now() + interval '1 day', n = 2, case when n = 3 then now() end
from unnest('{kept,gone,far}'::text[]) p, generate_series(1, 3) n`); err != nil {
		t.Fatal(err)
	}
	tick := func(projects, domains string) {
		t.Helper()
		app := testkit.Start(t, testkit.Env(t, database, map[string]string{
			"ALLOWED_PROJECTS": projects, "ALLOWED_DOMAINS": domains, "STATS_BACKFILL": "1h",
		}), Function)
		for range 2 { // the second one finds it done
			if a := app.Tick(t, "collect-stats"); a.Status != 204 {
				t.Fatalf("got %d %s", a.Status, a.Body)
			}
		}
	}
	check := func(when, sql string, want map[string]int) {
		t.Helper()
		if got := testkit.Pairs(t, conn, sql); !maps.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", when, got, want)
		}
	}
	const (
		callbacks   = `select project_id || ' ' || status, count(*) from callbacks where reason not like 'its owner%' group by 1`
		connections = `select project_id, count(*) from connections where suspended_at is null group by 1`
		events      = `select project_id || ' ' || type || ' ' || (data->>'status'), count(*) from events
where type <> '` + domain.StatsEvent + `' group by 1`
	)
	tick("kept,gone,unknown", "d1")
	check("only far is not served", callbacks, map[string]int{
		"kept verified": 1, "kept pending": 1, "gone verified": 1, "gone pending": 1, "far suspended": 2,
		"unknown verified": 1, "unknown pending": 1,
	})
	check("only far is not served", connections, map[string]int{"kept": 2, "gone": 2})
	check("only far is not served", events, map[string]int{
		"far " + domain.CallbackEvent + " suspended": 2, "far " + domain.ConnectionEvent + " suspended": 1,
	})
	check("only far is not served", "select project_id, count(*) from unserved_projects group by 1",
		map[string]int{"far": 1})
	tick("kept", "")
	check("only kept is served", connections, map[string]int{"kept": 2})
	check("only kept is served", "select project_id, count(*) from unserved_projects group by 1",
		map[string]int{"far": 1, "gone": 1, "unknown": 1})
	tick("kept,gone,far,unknown", "")
	check("all are served", callbacks, map[string]int{
		"kept verified": 1, "kept pending": 1, "gone pending": 2, "far pending": 2, "unknown pending": 2,
	})
	check("all are served", connections, map[string]int{"kept": 2, "gone": 2, "far": 2})
	check("all are served", "select project_id, count(*) from unserved_projects group by 1", map[string]int{})
	check("own suspensions", `select 'callbacks', count(*) from callbacks where status = 'suspended'
union all select 'connections', count(*) from connections where suspended_at is not null`,
		map[string]int{"callbacks": 4, "connections": 3})
}
