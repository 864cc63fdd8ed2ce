package collectstats

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// row is a row of stats_hourly.
type row struct {
	Hour      time.Time
	Running   int
	Total     int
	ByStatus  map[string]int
	Uncertain int
	Source    domain.Source
}

func rows(t *testing.T, database, projectID string) []row {
	t.Helper()
	conn := testkit.Connect(t, database)
	found, _ := conn.Query(context.Background(),
		`select hour, running, total, by_status, uncertain, source from stats_hourly where project_id = $1 order by hour`, projectID)
	out, err := pgx.CollectRows(found, pgx.RowToStructByPos[row])
	if err != nil {
		t.Fatal(err)
	}
	for i := range out {
		out[i].Hour = out[i].Hour.UTC()
	}
	return out
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
	for name, account := range map[string]string{
		"project by project, as a reader":   "collector",
		"the whole cloud at once, as admin": "admin",
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
			want := []row{{hour, 2, 4, map[string]int{"ACTIVE": 2, "SHUTOFF": 1, "ERROR": 1}, 0, domain.Sampled}}
			if diff := cmp.Diff(want, rows(t, database, p.ID)); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff([]row{{hour, 0, 0, map[string]int{}, 0, domain.Sampled}},
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
		{ago(4), 3, 3, map[string]int{"ACTIVE": 3}, 0, domain.Rebuilt},               // unchanged, stopped, paused
		{ago(3), 3, 4, map[string]int{"ACTIVE": 3, "SHUTOFF": 1}, 0, domain.Rebuilt}, // gone came, paused was stopped
		{ago(2), 4, 5, map[string]int{"ACTIVE": 4, "SHUTOFF": 1}, 0, domain.Rebuilt}, // young came
		{ago(1), 3, 5, map[string]int{"ACTIVE": 3, "SHUTOFF": 2}, 0, domain.Rebuilt}, // stopped was stopped
		{ago(0), 3, 4, map[string]int{"ACTIVE": 3, "SHUTOFF": 1}, 0, domain.Rebuilt}, // paused started, gone went
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

// TestOtherEvents are refused with 4xx, so that nobody sends them again.
func TestOtherEvents(t *testing.T) {
	t.Parallel()
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), map[string]string{"ALLOWED_PROJECTS": "none"}), Function)
	const path = "/events/collect-stats"
	ce := func(more ...string) []string {
		return append([]string{"Ce-Specversion", "1.0", "Ce-Id", "1", "Ce-Source", "/x"}, more...)
	}
	for name, tc := range map[string]struct {
		method string
		header []string
		want   int
	}{
		"no event":       {"POST", nil, 400},
		"without a key":  {"POST", ce("Ce-Type", "dev.knative.sources.ping"), 403},
		"a wrong key":    {"POST", ce("Ce-Type", "dev.knative.sources.ping", "Ce-Cloudfnkey", "guess"), 403},
		"another type":   {"POST", ce("Ce-Type", "com.example.other", "Ce-Cloudfnkey", testkit.EventKey), 415},
		"half an event":  {"POST", []string{"Ce-Specversion", "1.0", "Ce-Type", "x"}, 400},
		"another method": {"GET", nil, 405},
	} {
		if a := app.Do(t, tc.method, path, "", tc.header...); a.Status != tc.want {
			t.Errorf("%s: got %d %s, want %d", name, a.Status, a.Body, tc.want)
		}
	}
}
