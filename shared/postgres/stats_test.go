package postgres_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func hour(n int) time.Time { return noon.Add(time.Duration(n) * time.Hour) }

func count(project, domainID string, h, running, total int, source domain.Source) domain.HourCount {
	return domain.HourCount{
		ProjectID: project, DomainID: domainID, Hour: hour(h), Running: running, Total: total, Source: source,
		ByStatus: map[string]int{"ACTIVE": running, "SHUTOFF": total - running}, Launched: 2 * running,
	}
}

// entry is an hour of a series; running < 0 is a missing one.
func entry(h, running, total int, source domain.Source) domain.HourStat {
	s := domain.HourStat{Hour: hour(h), ByStatus: map[string]int{}, Source: source}
	if running >= 0 {
		s.Running, s.Total, s.ByStatus = &running, &total, map[string]int{"ACTIVE": running, "SHUTOFF": total - running}
		s.Launched = new(2 * running)
	}
	return s
}

func TestInsertKeepsFirstCount(t *testing.T) {
	t.Parallel()
	url := testkit.Database(t)
	store := postgres.Stats{DB: open(t, url)}
	first, second := count("p1", "d1", 0, 2, 3, domain.Sampled), count("p1", "d1", 0, 9, 9, domain.Rebuilt)
	for _, counts := range [][]domain.HourCount{
		nil,
		{first},
		{second, count("p1", "d1", 1, 1, 1, domain.Sampled)},
		{{ProjectID: "p2", DomainID: "d1", Hour: hour(0), Source: domain.Sampled}},
	} {
		noError(t, store.Insert(t.Context(), counts))
	}
	got := testkit.Pairs(t, testkit.Pool(t, url),
		`select project_id || ' ' || to_char(hour at time zone 'UTC', 'HH24') || ' ' || source || ' ' || by_status::text,
  running from stats_hourly`)
	want := map[string]int{
		`p1 12 sampled {"ACTIVE": 2, "SHUTOFF": 1}`: 2, `p1 13 sampled {"ACTIVE": 1, "SHUTOFF": 0}`: 1, `p2 12 sampled {}`: 0,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	known, err := store.Known(t.Context(), hour(0))
	if diff := cmp.Diff(map[string]map[time.Time]bool{"p1": {hour(0): true, hour(1): true}, "p2": {hour(0): true}},
		known); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	if known, err = store.Known(t.Context(), hour(1)); err != nil || len(known) != 1 || len(known["p1"]) != 1 {
		t.Errorf("got %v %v", known, err)
	}
}

// TestInsertRejectsInvalidCounts: one invalid count rejects all of the insert.
func TestInsertRejectsInvalidCounts(t *testing.T) {
	t.Parallel()
	store := postgres.Stats{DB: open(t, testkit.Database(t))}
	half := count("p1", "d1", 0, 1, 1, domain.Sampled)
	half.Hour = half.Hour.Add(30 * time.Minute)
	for name, bad := range map[string]domain.HourCount{
		"more run than there are": count("p1", "d1", 0, 2, 1, domain.Sampled),
		"fewer than none":         count("p1", "d1", 0, -1, 1, domain.Sampled),
		"an unknown source":       count("p1", "d1", 0, 1, 1, "guessed"), "half past": half,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := store.Insert(t.Context(), []domain.HourCount{
				count("good-"+name, "d1", 0, 1, 1, domain.Sampled),
				bad,
			}); apperr.CodeOf(err) != apperr.Internal {
				t.Errorf("got %v", err)
			}
			if known, err := store.Known(t.Context(), hour(-100)); err != nil || known["good-"+name] != nil {
				t.Errorf("got %v %v", known, err)
			}
		})
	}
}

// TestSeries: projects are summed up. An hour has no value if one of its projects is missing.
func TestSeries(t *testing.T) {
	t.Parallel()
	store := postgres.Stats{DB: open(t, testkit.Database(t))}
	counts := []domain.HourCount{
		count("p1", "d1", 0, 1, 2, domain.Sampled), count("p2", "d1", 0, 3, 3, domain.Sampled),
		count("p3", "d2", 0, 5, 6, domain.Sampled),
		count("p1", "d1", 1, 1, 2, domain.Sampled), // p2 is missing at 1
		count("p3", "d2", 1, 5, 5, domain.Rebuilt),
		count("p1", "d1", 2, 0, 0, domain.Sampled), count("p3", "d2", 2, 1, 1, domain.Sampled), // p2 is deleted at 2
	}
	noError(t, store.Insert(t.Context(), counts))
	see := func(first, last int, ids ...string) {
		t.Helper()
		var projects []domain.Project
		for _, id := range ids {
			projects = append(projects, domain.Project{
				ID:       id,
				DomainID: map[string]string{"p1": "d1", "p2": "d1", "p3": "d2"}[id],
			})
		}
		noError(t, store.RecordProjects(t.Context(), projects, hour(first), hour(last)))
	}
	see(0, 0, "p1", "p2", "p3")
	see(0, 1, "p1", "p2")
	see(1, 2, "p1", "p3")
	see(0, 1, "p1") // a late one does not take back what is known
	missing := func(h int) domain.HourStat { return entry(h, -1, 0, domain.Missing) }
	sampled := func(h, running, total int) domain.HourStat { return entry(h, running, total, domain.Sampled) }
	project := func(id, domainID string) domain.View {
		return domain.View{Scope: domain.ScopeProject, ProjectID: id, DomainID: domainID}
	}
	ofDomain := func(id string) domain.View { return domain.View{Scope: domain.ScopeDomain, DomainID: id} }
	for name, tc := range map[string]struct {
		view  domain.View
		first int
		want  []domain.HourStat
	}{
		"a project": {project("p1", ""), 0, []domain.HourStat{
			sampled(0, 1, 2), sampled(1, 1, 2), sampled(2, 0, 0),
		}},
		"a deleted project": {project("p2", ""), 0, []domain.HourStat{
			sampled(0, 3, 3), missing(1), missing(2),
		}},
		"a project of another domain": {project("p3", "d1"), 0, []domain.HourStat{missing(0)}},
		"a domain": {ofDomain("d1"), 0, []domain.HourStat{
			sampled(0, 4, 5), missing(1), sampled(2, 0, 0),
		}},
		"another domain": {ofDomain("d2"), 0, []domain.HourStat{
			sampled(0, 5, 6), entry(1, 5, 5, domain.Rebuilt),
		}},
		"the cloud": {domain.View{Scope: domain.ScopeCloud}, -1, []domain.HourStat{
			missing(-1), sampled(0, 9, 11), missing(1), sampled(2, 1, 1),
		}},
	} {
		got, err := store.Series(t.Context(), tc.view, hour(tc.first), hour(tc.first+len(tc.want)-1))
		if diff := cmp.Diff(tc.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v %s", name, err, diff)
		}
	}
}

// TestRefineReplacesCount: one with fewer uncertain servers, never one with more, and of two concurrent replicas
// the first. Whatever replaces a count, the most that were launched stay.
func TestRefineReplacesCount(t *testing.T) {
	t.Parallel()
	url := testkit.Database(t)
	store := postgres.Stats{DB: open(t, url)}
	with := func(running int, undecided ...string) domain.HourCount {
		c := count("p1", "d1", 0, running, running, domain.Sampled)
		c.Undecided, c.Launched = undecided, 9-running
		return c
	}
	now := func() (running, uncertain int) {
		conn := testkit.Pool(t, url)
		return testkit.Scalar[int](t, conn, "select running from stats_hourly"), testkit.Scalar[int](t, conn,
			"select uncertain from stats_hourly")
	}
	for i, tc := range []struct {
		insert, refine     []domain.HourCount
		before             int
		running, uncertain int
	}{
		{insert: []domain.HourCount{with(1, "a", "b")}, running: 1, uncertain: 2},
		{insert: []domain.HourCount{with(0, "a", "b", "c")}, running: 1, uncertain: 2},
		{insert: []domain.HourCount{with(9, "a", "b")}, running: 1, uncertain: 2},
		{insert: []domain.HourCount{with(2, "b")}, running: 2, uncertain: 1},
		{refine: []domain.HourCount{with(8)}, before: 2, running: 2, uncertain: 1}, // from a deleted row
		{refine: []domain.HourCount{with(3)}, before: 1, running: 3, uncertain: 0},
		{insert: []domain.HourCount{with(9)}, running: 3, uncertain: 0},
	} {
		err := store.Insert(t.Context(), tc.insert)
		for _, c := range tc.refine {
			err = store.ReplaceCounts(t.Context(), []domain.Recount{{HourCount: c, Before: tc.before}})
		}
		wantValue(t, testkit.Pool(t, url), 8, "%d were launched", "select launched from stats_hourly")
		if running, uncertain := now(); err != nil || running != tc.running || uncertain != tc.uncertain {
			t.Errorf("step %d: %d running, %d uncertain, %v", i, running, uncertain, err)
		}
	}
}

// TestLaunchedIsUnknown of counts without it, and of their sums, while the other numbers are known.
func TestLaunchedIsUnknown(t *testing.T) {
	t.Parallel()
	url := testkit.Database(t)
	store, conn := postgres.Stats{DB: open(t, url)}, testkit.Connect(t, url)
	noError(t, store.RecordProjects(t.Context(), []domain.Project{{ID: "p1", DomainID: "d1"}}, hour(0), hour(1)))
	noError(t, store.Insert(t.Context(), []domain.HourCount{
		count("p1", "d1", 0, 1, 2, domain.Sampled), count("p2", "d1", 0, 3, 3, domain.Sampled),
		count("p1", "d1", 1, 1, 1, domain.Sampled),
	}))
	exec(t, conn, "update stats_hourly set launched = null where project_id = 'p2'")
	unknown := entry(0, 4, 5, domain.Sampled)
	unknown.Launched = nil
	want := []domain.HourStat{unknown, entry(1, 1, 1, domain.Sampled)}
	for _, when := range []string{"added up", "kept"} {
		got, err := store.Series(t.Context(), domain.View{Scope: domain.ScopeCloud}, hour(0), hour(1))
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v %s", when, err, diff)
		}
		noError(t, store.Summarize(t.Context(), hour(0), time.Now().Add(time.Hour)))
	}
}

// TestSeriesSumsUncertain: uncertain servers are summed up. An hour is announced when all of its rows are settled.
func TestSeriesSumsUncertain(t *testing.T) {
	t.Parallel()
	store := postgres.Stats{DB: open(t, testkit.Database(t))}
	a, b := count("p1", "d1", 0, 1, 2, domain.Sampled), count("p2", "d1", 0, 3, 3, domain.Sampled)
	a.Undecided, a.Recheck, b.Undecided, b.Settled = []string{"x", "y"}, time.Minute, []string{"z"}, true
	noError(t, store.Insert(t.Context(), []domain.HourCount{a, b}))
	cloud := domain.View{Scope: domain.ScopeCloud}
	want := entry(0, 4, 5, domain.Sampled)
	want.Uncertain = 3
	got, err := store.Series(t.Context(), cloud, hour(0), hour(0))
	if diff := cmp.Diff([]domain.HourStat{want}, got); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	if got, err := store.Settled(t.Context(), hour(-1), hour(0)); err != nil || len(got) != 0 {
		t.Errorf("settled are %v %v", got, err)
	}
	if due, err := store.Undecided(t.Context(), hour(0)); err != nil || len(due) != 1 || due[0].ProjectID != "p2" ||
		due[0].Undecided[0] != "z" {
		t.Errorf("due are %v %v", due, err)
	}
	_, at, err := store.Due(t.Context(), "collect-stats", "x", hour(0))
	if _, none, err2 := store.Due(t.Context(), "collect-stats", "x", hour(1)); err != nil || err2 != nil ||
		at.IsZero() || !none.IsZero() {
		t.Errorf("due at %s, of later hours at %s: %v %v", at, none, err, err2)
	}
	a.Undecided, a.Settled = []string{"x"}, true
	noError(t, store.ReplaceCounts(t.Context(), []domain.Recount{{HourCount: a, Before: 2}}))
	want.Uncertain = 2
	if got, err := store.Settled(t.Context(), hour(-1), hour(0)); err != nil ||
		cmp.Diff([]domain.HourStat{want}, got) != "" {
		t.Errorf("settled are %v %v", got, err)
	}
}

// TestSumsAreKept: series do not change when the sums of their hours are kept, whatever is written between.
func TestSumsAreKept(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	url := testkit.Database(t)
	store, conn := postgres.Stats{DB: open(t, url)}, testkit.Connect(t, url)
	var projects []domain.Project
	for n := range 8 {
		projects = append(projects, domain.Project{ID: fmt.Sprint("p", n), DomainID: fmt.Sprint("d", n%3)})
	}
	const hours = 30
	series := func() (all [][]domain.HourStat) {
		for _, v := range []domain.View{
			{Scope: domain.ScopeCloud},
			{Scope: domain.ScopeDomain, DomainID: "d1"},
			{Scope: domain.ScopeProject, ProjectID: "p1"},
		} {
			read := must(store.Series(t.Context(), v, hour(0), hour(hours)))(t)
			all = append(all, read)
		}
		settled := must(store.Settled(t.Context(), hour(0), hour(hours)))(t)
		return append(all, settled)
	}
	write := []func() error{
		func() error {
			return store.RecordProjects(t.Context(), projects[random.IntN(3):], hour(0), hour(random.IntN(hours)))
		},
		func() error {
			var counts []domain.HourCount
			for range 60 {
				p, total := projects[random.IntN(len(projects))], random.IntN(9)
				c := count(p.ID, p.DomainID, random.IntN(hours), total/2, total, domain.Sampled)
				c.Settled = random.IntN(4) > 0
				if random.IntN(4) == 0 {
					c.Source, c.Undecided = domain.Rebuilt, []string{"s"}
				}
				counts = append(counts, c)
			}
			return store.Insert(t.Context(), counts)
		},
		func() error {
			c := count("p1", "d1", random.IntN(hours), 3, 4, domain.Rebuilt)
			return store.ReplaceCounts(t.Context(), []domain.Recount{{HourCount: c, Before: 1}})
		},
		func() error { return store.StopExpecting(t.Context(), "p2", hour(0), hour(random.IntN(hours))) },
	}
	for range 40 {
		noError(t, write[random.IntN(len(write))]())
		kept := series()
		exec(t, conn, "delete from stats_sums")
		if diff := cmp.Diff(series(), kept); diff != "" {
			t.Fatalf("seed %d: kept sums differ: %s", seed, diff)
		}
		noError(t, store.Summarize(t.Context(), hour(0), time.Now().Add(time.Hour)))
	}
	err := errors.Join(store.RecordProjects(t.Context(), projects, hour(0), hour(hours)),
		store.Summarize(t.Context(), hour(0), time.Now().Add(time.Hour)))
	if err != nil {
		t.Fatal(err)
	}
	before := series()
	exec(t, conn, "update stats_hourly set running = 0, total = 0")
	exec(t, conn, "update stats_projects set gaps = '{}'")
	if diff := cmp.Diff(before[:2], series()[:2]); diff != "" {
		t.Errorf("settled hours were added up again: %s", diff)
	}
}

// TestCountConcurrently: replicas insert the hours of the same projects concurrently, as at the turn of an hour,
// without a deadlock.
func TestCountConcurrently(t *testing.T) {
	t.Parallel()
	url := testkit.Database(t)
	store, conn := postgres.Stats{DB: open(t, url)}, testkit.Connect(t, url)
	first, second := count("p1", "d1", 0, 1, 1, domain.Sampled), count("p2", "d1", 0, 1, 1, domain.Sampled)
	first.Undecided, second.Undecided = []string{"a"}, []string{"b"}
	refined := []domain.Recount{{HourCount: second, Before: 1}, {HourCount: first, Before: 1}}
	for name, tc := range map[string]struct {
		other string // what the other replica writes of a project
		write func() error
	}{
		"insert": {
			`insert into stats_hourly (project_id, hour, domain_id, running, total, by_status, source) values ($1, $2, 'd1', 1,
  1, '{}', 'sampled')`,
			func() error { return store.Insert(t.Context(), []domain.HourCount{second, first}) },
		},
		"refine": {
			"update stats_hourly set uncertain = 0 where project_id = $1 and hour = $2",
			func() error { return store.ReplaceCounts(t.Context(), refined) },
		},
	} {
		must(conn.Exec(t.Context(), "delete from stats_hourly"))(t)
		if name == "refine" {
			noError(t, store.Insert(t.Context(), []domain.HourCount{first, second}))
		}
		tx := must(conn.Begin(t.Context()))(t)
		other := func(project string) {
			t.Helper()
			if _, err := tx.Exec(t.Context(), tc.other, project, hour(0)); err != nil {
				t.Errorf("%s: the other replica: %v", name, err)
			}
		}
		other("p1")
		written := make(chan error, 1)
		go func() { written <- tc.write() }()
		testkit.Eventually(t, 4*time.Second, "it waits", func() bool {
			return testkit.Scalar[bool](t, testkit.Pool(t, url),
				"select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')")
		})
		other("p2")
		_ = tx.Commit(t.Context())
		if err := <-written; err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestReturningProjectIsExpected: a project that returns after days, because it was disabled, is not missing in hours
// that were recorded without it; nor is a new one. In hours that no one recorded, all projects are missing.
func TestReturningProjectIsExpected(t *testing.T) {
	t.Parallel()
	store := postgres.Stats{DB: open(t, testkit.Database(t))}
	see := func(n int, counted bool, ids ...string) {
		t.Helper()
		var projects []domain.Project
		var counts []domain.HourCount
		for _, id := range ids {
			projects = append(projects, domain.Project{ID: id, DomainID: "d1"})
			counts = append(counts, count(id, "d1", n, 1, 1, domain.Sampled))
		}
		err := store.RecordProjects(t.Context(), projects, hour(n-3), hour(n))
		if counted && err == nil {
			err = store.Insert(t.Context(), counts)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	sums := func(first, last int) (running []int) {
		t.Helper()
		got := must(store.Series(t.Context(), domain.View{Scope: domain.ScopeCloud}, hour(first), hour(last)))(t)
		for _, h := range got {
			if running = append(running, -1); h.Running != nil {
				running[len(running)-1] = *h.Running
			}
		}
		return running
	}
	check := func(what string, want, got []int) {
		t.Helper()
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
	}
	see(0, true, "p1", "p2")
	for n := 1; n < 9; n++ {
		see(n, true, "p1") // p2 is disabled
	}
	see(9, false, "p1", "p2", "new")
	check("before they are counted", []int{2, 1, 1, 1, 1, 1, 1, 1, 1, -1}, sums(0, 9))
	see(9, true, "p1", "p2", "new")
	check("counted", []int{2, 1, 1, 1, 1, 1, 1, 1, 1, 3}, sums(0, 9))
	see(10, true, "p1", "new") // and away again
	see(12, true, "p1", "p2", "new")
	check("no one counted the hour 11", []int{3, 2, -1, 3}, sums(9, 12))
	see(11, true, "p1", "new") // a late one does not take back that p2 may have been there
	check("after a late one", []int{3, 2, -1, 3}, sums(9, 12))
}
