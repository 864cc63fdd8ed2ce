package collectstats

import (
	"context"
	"encoding/json"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/flow"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// at moves the database's clock, and returns a replica that counts the projects then.
func at(t *testing.T, database string, clock time.Time, more map[string]string) *testkit.Client {
	t.Helper()
	testkit.SetClock(t, database, clock)
	return testkit.Start(t, testkit.Env(t, database, more), Function)
}

func tick(t *testing.T, app *testkit.Client, want int) {
	t.Helper()
	if a := app.Tick(t, "collect-stats"); a.Status != want || (a.Header.Get("Retry-After") != "") != (want == 503) {
		t.Fatalf("got %d %v %s, want %d", a.Status, a.Header, a.Body, want)
	}
}

// hourEvent is an hour's event as it stands in the outbox.
type hourEvent struct {
	Project, Subject string
	Seq              int
	Type             string
	At               time.Time
	Data             string
}

func announced(t *testing.T, database string) []hourEvent {
	t.Helper()
	rows, _ := testkit.Pool(t, database).Query(context.Background(),
		"select project_id, subject, seq, type, at, data::text from events order by at")
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[hourEvent])
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// expect sees that just the given hours, counted from one, were announced.
func expect(t *testing.T, database string, hour time.Time, after ...int) {
	t.Helper()
	want, got := []string{}, []string{}
	for _, n := range after {
		want = append(want, domain.HourKey(hour.Add(time.Duration(n)*time.Hour)))
	}
	for _, e := range announced(t, database) {
		got = append(got, e.Subject)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestLongHoursAreAnnounced once each, whatever number of ticks comes, for as long as the window is.
func TestLongHoursAreAnnounced(t *testing.T) {
	t.Parallel()
	p, later := testkit.NewProject(t), testkit.NewProject(t)
	made := p.Boot(t, "announced", 3)
	p.Stop(t, made[0].ID)
	later.Boot(t, "announced with them", 1)
	database, hour := testkit.Database(t), nextHour()
	launched := float64(launchedIn(t, p, hour))
	env := map[string]string{"ALLOWED_PROJECTS": p.ID, "STATS_BACKFILL": "3h"}
	app := at(t, database, hour.Add(4*time.Minute), env)
	for range 3 { // the second and third find the hour done
		tick(t, app, 204)
	}
	expect(t, database, hour, -2, -1, 0)
	last := announced(t, database)[2]
	var data any
	if err := json.Unmarshal([]byte(last.Data), &data); err != nil {
		t.Fatal(err)
	}
	key := domain.HourKey(hour)
	want := map[string]any{
		"hour": key, "running": 2., "total": 3., "launched": launched,
		"by_status": map[string]any{"ACTIVE": 2., "SHUTOFF": 1.}, "uncertain": 0., "source": "sampled",
	}
	if diff := cmp.Diff(want, data); diff != "" {
		t.Error(diff)
	}
	if last.Project != "" || last.Seq != 1 || last.Type != "cloudfn.stats.hour.v1" || !last.At.Equal(hour) {
		t.Errorf("got %+v", last)
	}

	// A project that comes later makes no hour new that was announced without it.
	env["ALLOWED_PROJECTS"] = p.ID + "," + later.ID
	tick(t, at(t, database, hour.Add(time.Hour), env), 204)
	expect(t, database, hour, -2, -1, 0, 1)
	if n := len(rows(t, database, later.ID)); n != 3 {
		t.Errorf("its window has %d hours, want 3", n)
	}

	// An hour that has become the oldest of the longest window is still known to have been announced.
	env["STATS_BACKFILL"] = "720h"
	tick(t, at(t, database, hour.Add(720*time.Hour-time.Minute), env), 204)
	if all := len(announced(t, database)); all != 722 {
		t.Errorf("%d events, want one for each of 722 hours", all)
	}
}

// TestLongAnnounceConcurrently at the turn of the hour, when each works for an hour of its own and both would announce
// what is left: each hour has one event.
func TestLongAnnounceConcurrently(t *testing.T) {
	t.Parallel()
	p := testkit.NewProject(t)
	database, hour := testkit.Database(t), nextHour()
	env := map[string]string{"ALLOWED_PROJECTS": p.ID, "STATS_BACKFILL": "3h"}
	early := at(t, database, hour, env)
	tick(t, early, 204) // its connections keep this clock, as long as they are not replaced
	late := at(t, database, hour.Add(time.Hour), env)
	if _, err := testkit.Pool(t, database).Exec(t.Context(), "delete from events; delete from jobs"); err != nil {
		t.Fatal(err)
	}
	var both sync.WaitGroup
	for _, app := range []*testkit.Client{early, late} {
		both.Go(func() { tick(t, app, 204) })
	}
	both.Wait()
	if all := announced(t, database); len(all) == 4 {
		expect(t, database, hour, -2, -1, 0, 1)
	} else {
		expect(t, database, hour, -1, 0, 1)
	}
}

// TestLongIncompleteHourIsNotAnnounced is announced when its last project could be counted, and not before.
func TestLongIncompleteHourIsNotAnnounced(t *testing.T) {
	t.Parallel()
	good, bad := testkit.NewProject(t), testkit.NewProject(t)
	bad.Boot(t, "hidden", 1)
	nova, broken := breakUsage(t, bad.ID)
	database, hour := testkit.Database(t), nextHour()
	env := testkit.RedirectTo(t, map[string]string{"compute": nova}).Env(t, "collector")
	env["ALLOWED_PROJECTS"], env["STATS_BACKFILL"] = good.ID+","+bad.ID, "1h"
	app := at(t, database, hour.Add(time.Minute), env)
	tick(t, app, 503)
	expect(t, database, hour)
	broken.Store(false)
	tick(t, app, 204)
	if expect(t, database, hour, 0); !t.Failed() {
		var got struct{ Running int }
		if err := json.Unmarshal([]byte(announced(t, database)[0].Data), &got); err != nil || got.Running != 1 {
			t.Errorf("got %v %v, want one running", got, err)
		}
	}
}

// TestBudget raises an alarm when the log has grown by more within a day.
func TestBudget(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	db, err := postgres.Open(postgres.Config{URL: domain.Secret(database), MaxConns: 2}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	s := newService(db, nil)
	exec := func(sql string) {
		if _, err := testkit.Connect(t, database).Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec("insert into request_log_sizes values (date_trunc('hour', now(), 'UTC') - interval '1 hour', 0)")
	exec(`insert into requests (id, function, method, path, status, ms, user_id, project_id, domain_id, request_id,
			remote, code)
		select gen_random_uuid(), '', 'GET', '/', 401, 1, '', '', '', '', '', '' from generate_series(1, 10000)`)
	for budget, want := range map[int64]bool{100 << 20: false, 1 << 20: true} {
		if s.budget = budget; s.checkBudget(t.Context()) != want {
			t.Errorf("a budget of %d bytes: alarm %t", budget, !want)
		}
	}
}

// TestStoppedClockIsConfirmed: overdue work raises an alarm only if it is still overdue some time later. A process that
// ends does not wait for that, and raises none.
func TestStoppedClockIsConfirmed(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	run := func(sql string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	ending := make(chan struct{})
	close(ending)
	ended := flow.WithEnding(t.Context(), ending)
	meanwhile := func(sql string) func(context.Context) bool {
		return func(context.Context) bool { run(sql); return true }
	}
	for _, tc := range []struct {
		name   string
		await  func(context.Context) bool
		events int
	}{
		{"after a downtime the clock's first tick has its function woken", meanwhile(
			"update jobs set claimed_until = now() + interval '1 minute'"), 0},
		{"the process ends", func(context.Context) bool { return awaitClock(ended) }, 0},
		{"the clock has stopped", meanwhile("select"), 1},
		{"the clock is still stopped", meanwhile("select"), 1},
	} {
		run(`delete from jobs;
insert into jobs (kind, key, due_at) values ('run-leases', 'retire', now() - interval '1 hour')`)
		s := serviceOn(t, database, &fakeCloud{}, time.Hour)
		s.await = tc.await
		if err := s.checkClock(t.Context()); err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
		if n := testkit.Scalar[int](t, conn, "select count(*)::int from events"); n != tc.events {
			t.Errorf("%s: %d events, want %d", tc.name, n, tc.events)
		}
	}
}

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
