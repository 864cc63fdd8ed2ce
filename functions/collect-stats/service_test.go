package collectstats

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestJoinedIsRetryable as long as a retry helps any part of the work.
func TestJoinedIsRetryable(t *testing.T) {
	t.Parallel()
	final, retryable := apperr.New(apperr.Forbidden, "no"), apperr.New(apperr.Unavailable, "unavailable")
	for name, tc := range map[string]struct {
		parts []error
		want  bool
	}{
		"one final":     {[]error{final, nil}, false},
		"all final":     {[]error{final, final}, false},
		"the last part": {[]error{final, retryable}, true},
		"the first":     {[]error{retryable, final}, true},
		"without code":  {[]error{errors.New("a fault"), final}, true},
	} {
		err := joined(tc.parts...)
		if apperr.Retryable(err) != tc.want || !errors.Is(err, tc.parts[0]) {
			t.Errorf("%s: got %s (%v)", name, apperr.CodeOf(err), err)
		}
	}
	if err := joined(nil, nil); err != nil {
		t.Error(err)
	}
}

// TestEndOfJobIsRecorded although the event's time is up. A database that hangs delays the event by a few seconds only.
func TestEndOfJobIsRecorded(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	s, conn := serviceOn(t, database, &fakeCloud{}, time.Hour), testkit.Connect(t, database)
	claim, err := s.jobs.Claim(t.Context(), jobKind, "hour", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "select from jobs for update"); err != nil {
		t.Fatal(err)
	}
	// its own deadline ended it, and not the event's end
	if err = s.end(canceled, "hour", claim, nil, nil, 0); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.end(canceled, "hour", claim, nil, nil, 0); err != nil {
		t.Error(err)
	}
	if !testkit.Scalar[bool](t, conn, "select done_at is not null from jobs") {
		t.Error("the job is not done")
	}
}

// row is a row of stats_hourly.
type row struct {
	Hour      time.Time
	Running   int
	Total     int
	Launched  int
	ByStatus  map[string]int
	Uncertain int
	Source    domain.Source
}

func rows(t *testing.T, database, projectID string) []row {
	t.Helper()
	conn := testkit.Connect(t, database)
	found, _ := conn.Query(context.Background(),
		`select hour, running, total, launched, by_status, uncertain, source from stats_hourly where project_id = $1 order by hour`, projectID)
	out, err := pgx.CollectRows(found, pgx.RowToStructByPos[row])
	if err != nil {
		t.Fatal(err)
	}
	for i := range out {
		out[i].Hour = out[i].Hour.UTC()
	}
	return out
}

// launchedIn is how many servers of a project Nova shows as created in the hour that ends then.
func launchedIn(t *testing.T, p *testkit.Project, hour time.Time) int {
	t.Helper()
	c := domain.HourCount{Hour: hour}
	for _, s := range p.Servers(t) {
		c.AddCreated(s.Created)
	}
	return c.Launched
}

// nextHour is a full hour that is near enough for what stands now to be what stands then.
func nextHour() time.Time { return time.Now().UTC().Truncate(time.Hour).Add(time.Hour) }

// TestTickAtTheFullHour counts what stands, by both ways, and once only.
func TestTickAtTheFullHour(t *testing.T) {
	t.Parallel()
	p, empty := testkit.NewProject(t), testkit.NewProject(t)
	made := p.Boot(t, "counted", 3)
	p.Stop(t, made[0].ID)
	p.Fail(t, "never launched")
	hour := nextHour()
	launched := launchedIn(t, p, hour) // all 4, unless the hour has just turned
	for name, account := range map[string]string{
		"project by project, as a reader":    "collector",
		"the whole cloud together, as admin": "admin",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			database := testkit.Database(t)
			testkit.SetClock(t, database, hour.Add(4*time.Minute))
			app := testkit.Start(t, testkit.Env(t, database, map[string]string{
				"OS_CLOUD": account, "ALLOWED_PROJECTS": p.ID + "," + empty.ID, "STATS_BACKFILL": "1h",
			}), Function)
			for range 3 { // the second and third find the hour done
				if a := app.Tick(t, "collect-stats"); a.Status != 204 {
					t.Fatalf("got %d %s", a.Status, a.Body)
				}
			}
			want := []row{{hour, 2, 4, launched, map[string]int{"ACTIVE": 2, "SHUTOFF": 1, "ERROR": 1}, 0, domain.Sampled}}
			if diff := cmp.Diff(want, rows(t, database, p.ID)); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff([]row{{hour, 0, 0, 0, map[string]int{}, 0, domain.Sampled}},
				rows(t, database, empty.ID)); diff != "" {
				t.Errorf("a project without servers has zero: %s", diff)
			}
			conn := testkit.Connect(t, database)
			if n := testkit.Scalar[int](t, conn, "select count(*)::int from stats_hourly"); n != 2 {
				t.Errorf("%d rows, want those of the two allowed projects", n)
			}
			if n := testkit.Scalar[int](t, conn,
				"select count(*)::int from pg_inherits where inhparent = 'requests'::regclass"); n != 3 {
				t.Errorf("%d partitions of the request log, want this month's, the next and the default", n)
			}
		})
	}
}

// TestLongFiveHoursWithoutTicks rebuilds them from Nova's history, with servers made, stopped, started and deleted
// in between.
func TestLongFiveHoursWithoutTicks(t *testing.T) {
	t.Parallel()
	testkit.Heavy(t)
	p := testkit.NewProject(t)
	made := p.Boot(t, "history", 5)
	unchanged, young, stopped, gone, paused := made[0].ID, made[1].ID, made[2].ID, made[3].ID, made[4].ID
	p.Stop(t, stopped)
	p.Stop(t, paused)
	p.Start(t, paused)
	p.Delete(t, gone)

	last := time.Now().UTC().Truncate(time.Hour)
	ago := func(hours float64) time.Time { return last.Add(-time.Duration(hours * float64(time.Hour))) }
	testkit.Backdate(t, unchanged, ago(30), nil)
	testkit.Backdate(t, young, ago(2.5), nil)
	testkit.Backdate(t, stopped, ago(30), map[string]time.Time{"stop": ago(1.5)})
	testkit.Backdate(t, gone, ago(3.5), map[string]time.Time{"delete": ago(0.5)})
	testkit.Backdate(t, paused, ago(30), map[string]time.Time{"stop": ago(3.5), "start": ago(0.5)})

	database := testkit.Database(t)
	testkit.SetClock(t, database, last.Add(20*time.Minute))
	app := testkit.Start(t, testkit.Env(t, database, map[string]string{"ALLOWED_PROJECTS": p.ID, "STATS_BACKFILL": "5h"}),
		Function)
	if a := app.Tick(t, "collect-stats"); a.Status != 204 {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	want := []row{
		{ago(4), 3, 3, 0, map[string]int{"ACTIVE": 3}, 0, domain.Rebuilt},               // unchanged, stopped, paused
		{ago(3), 3, 4, 1, map[string]int{"ACTIVE": 3, "SHUTOFF": 1}, 0, domain.Rebuilt}, // gone came, paused was stopped
		{ago(2), 4, 5, 1, map[string]int{"ACTIVE": 4, "SHUTOFF": 1}, 0, domain.Rebuilt}, // young came
		{ago(1), 3, 5, 0, map[string]int{"ACTIVE": 3, "SHUTOFF": 2}, 0, domain.Rebuilt}, // stopped was stopped
		{ago(0), 3, 4, 0, map[string]int{"ACTIVE": 3, "SHUTOFF": 1}, 0, domain.Rebuilt}, // paused started, gone went
	}
	if diff := cmp.Diff(want, rows(t, database, p.ID)); diff != "" {
		t.Error(diff)
	}
}

// TestLongOneProjectFails leaves that project's hour missing, and never zero, until Nova answers for it.
func TestLongOneProjectFails(t *testing.T) {
	t.Parallel()
	good, bad := testkit.NewProject(t), testkit.NewProject(t)
	bad.Boot(t, "hidden", 1)
	nova, broken := breakUsage(t, bad.ID)
	database := testkit.Database(t)
	hour := nextHour()
	testkit.SetClock(t, database, hour.Add(time.Minute))
	env := testkit.RedirectTo(t, map[string]string{"compute": nova}).Env(t, "collector")
	env["ALLOWED_PROJECTS"], env["STATS_BACKFILL"] = good.ID+","+bad.ID, "1h"
	app := testkit.Start(t, testkit.Env(t, database, env), Function)
	for range 2 {
		if a := app.Tick(t, "collect-stats"); a.Status != 503 || a.Header.Get("Retry-After") == "" {
			t.Errorf("got %d %s, want 503: send it again", a.Status, a.Body)
		}
		if g, b := rows(t, database, good.ID), rows(t, database, bad.ID); len(g) != 1 || len(b) != 0 {
			t.Errorf("the good project has %v, the other %v", g, b)
		}
	}
	broken.Store(false)
	if a := app.Tick(t, "collect-stats"); a.Status != 204 {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	if got := rows(t, database, bad.ID); len(got) != 1 || got[0].Running != 1 {
		t.Errorf("got %v, want one running", got)
	}
}

// breakUsage stands before the real Nova and fails for one project's usage: the real one fails for all or none.
func breakUsage(t *testing.T, projectID string) (at string, broken *atomic.Bool) {
	t.Helper()
	broken = &atomic.Bool{}
	broken.Store(true)
	at, _ = testkit.Intercept(t, testkit.Compute(t, testkit.Login(t, "admin")).Endpoint, func(r *http.Request) {
		if broken.Load() && strings.Contains(r.URL.Path, "os-simple-tenant-usage/"+projectID) {
			r.URL.Path = "/v2.1/no-such-thing\xff" // which makes Nova answer with an error of its own
		}
	})
	return at, broken
}

// TestProjectDeletedDuringRead: once Keystone reports that it is deleted, the sums of the cloud are known without it.
// One that is disabled stays expected.
func TestProjectDeletedDuringRead(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		knows error // Keystone's answer for the project that is no longer listed
		known int   // hours of the cloud with a sum, of 3
	}{
		{"deleted", apperr.New(apperr.NotFound, "absent"), 3},
		{"disabled", nil, 0},
		{"not to be read", apperr.New(apperr.Forbidden, "no"), 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			database := testkit.Database(t)
			testkit.SetClock(t, database, time.Now().UTC().Truncate(time.Hour).Add(10*time.Minute))
			cloud := &fakeCloud{each: true, projects: []domain.Project{
				{ID: "stays", DomainID: "d"},
				{ID: "leaves", DomainID: "d"},
			}}
			cloud.before = func(call, of string) error {
				switch {
				case of != "leaves":
					return nil
				case call == "knows":
					return tc.knows
				}
				return apperr.New(apperr.NotFound, "keystone: no such project")
			}
			s := serviceOn(t, database, cloud, 3*time.Hour)
			_ = collect(t, s) // what it could not read
			conn := testkit.Connect(t, database)
			known := func() int {
				return testkit.Scalar[int](t, conn, "select count(*)::int from events where type = 'cloudfn.stats.hour.v1'")
			}
			if n := known(); n != tc.known {
				t.Errorf("%d hours of the cloud are known while it is listed, want %d", n, tc.known)
			}
			cloud.projects = cloud.projects[:1]
			if _, err := conn.Exec(t.Context(), "update jobs set claimed_until = null, claim_id = null"); err != nil {
				t.Fatal(err)
			}
			if err := collect(t, s); err != nil {
				t.Fatal(err)
			}
			if n := known(); n != tc.known {
				t.Errorf("%d hours of the cloud are known, want %d", n, tc.known)
			}
		})
	}
}

// TestRecheckOfUnreadableProject, such as one that was disabled, keeps its count, and is tried with growing pauses.
// The hour is announced ten minutes after it, with what is uncertain.
func TestRecheckOfUnreadableProject(t *testing.T) {
	t.Parallel()
	database, hour := testkit.Database(t), nextHour()
	cloud := &fakeCloud{
		each: true, projects: twoProjects,
		servers: []domain.History{stood("a", "p1", hour), stood("b", "p2", hour)},
	}
	stops(&cloud.servers[1], hour.Add(time.Second), false)
	tickAt(t, database, cloud, time.Hour, hour.Add(16*time.Second))
	cloud.before = func(call, of string) error {
		if call == "in" && of == "p2" {
			return apperr.New(apperr.Unauthenticated, "the project is disabled")
		}
		return nil
	}
	tried := 0
	for minute := range 30 {
		testkit.SetClock(t, database, hour.Add(time.Duration(minute+1)*time.Minute+16*time.Second))
		cloud.calls = nil
		_ = collect(t, serviceOn(t, database, cloud, time.Hour)) // it reports that the project cannot be read
		tried += cloud.calls["in p2"]
	}
	if tried > 14 {
		t.Errorf("the project was tried %d times in 30 minutes", tried)
	}
	if got := rows(t, database, "p2"); got[0].Running != 0 || got[0].Uncertain != 1 {
		t.Errorf("got %+v", got)
	}
	if n := len(announced(t, database)); n != 1 {
		t.Errorf("%d events", n)
	}
}

// TestRecheckWhileCellIsDown takes no server away: all cells must answer before and after the list of
// changes.
func TestRecheckWhileCellIsDown(t *testing.T) {
	t.Parallel()
	database, hour := testkit.Database(t), nextHour()
	cloud := &fakeCloud{projects: twoProjects, servers: []domain.History{stood("a", "p1", hour)}}
	stops(&cloud.servers[0], hour.Add(time.Second), false)
	tickAt(t, database, cloud, time.Hour, hour.Add(16*time.Second))
	hidden := cloud.servers
	cloud.servers = nil
	cloud.before = func(call, _ string) error {
		if call == "cells" && cloud.servers == nil { // it is back after the list of changes
			cloud.servers = hidden
			return apperr.New(apperr.BadGateway, "a cell is down")
		}
		return nil
	}
	testkit.SetClock(t, database, hour.Add(80*time.Second))
	if err := collect(t, serviceOn(t, database, cloud, time.Hour)); err == nil {
		t.Error("a check beside a cell that is down was no failure")
	}
	if got := rows(t, database, "p1"); got[0].Uncertain != 1 {
		t.Errorf("got %+v", got)
	}
}
