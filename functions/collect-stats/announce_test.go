package collectstats

import (
	"context"
	"encoding/json"
	"slices"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/google/go-cmp/cmp"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// at moves the database's clock, and gives a copy that counts the projects then and tells the sink.
func at(t *testing.T, database string, clock time.Time, more map[string]string) *testkit.Client {
	t.Helper()
	testkit.SetClock(t, database, clock)
	return testkit.Start(t, testkit.Env(t, database, more))
}

func tick(t *testing.T, app *testkit.Client, want int) {
	t.Helper()
	if a := app.Tick(t, "collect-stats"); a.Status != want || (a.Header.Get("Retry-After") != "") != (want == 503) {
		t.Fatalf("got %d %v %s, want %d", a.Status, a.Header, a.Body, want)
	}
}

// ids are those of the hours' events: the given hours after one.
func ids(hour time.Time, after ...int) []string {
	out := []string{}
	for _, n := range after {
		out = append(out, domain.HourKey(hour.Add(time.Duration(n)*time.Hour))+":1")
	}
	return out
}

func expect(t *testing.T, sink *testkit.Sink, want []string) {
	t.Helper()
	if diff := cmp.Diff(want, sink.IDs()); diff != "" {
		t.Error(diff)
	}
}

// marks are the jobs that say what was announced, and how often it was tried.
func marks(t *testing.T, database string) map[string]int {
	t.Helper()
	return testkit.Pairs(t, testkit.Connect(t, database), "select key, attempts from jobs where kind = 'announce-stats' and done_at is not null and error is null")
}

// TestHoursAreAnnounced once each, the oldest first, whatever number of ticks comes, for as long as the window is.
func TestHoursAreAnnounced(t *testing.T) {
	t.Parallel()
	p, later := testkit.NewProject(t), testkit.NewProject(t)
	made := p.Boot(t, "announced", 3)
	p.Stop(t, made[0].ID)
	later.Boot(t, "announced with them", 1)
	database, sink, hour := testkit.Database(t), testkit.NewSink(t, nil), nextHour()
	env := map[string]string{
		"ALLOWED_PROJECTS": p.ID, "STATS_BACKFILL": "3h", "K_SINK": sink.URL + "/cloudfn/default?x=1",
		"K_CE_OVERRIDES": `{"extensions":{"cloud":"north"}}`,
	}
	app := at(t, database, hour.Add(4*time.Minute), env)
	for range 3 { // the second and third find the hour done
		tick(t, app, 204)
	}
	expect(t, sink, ids(hour, -2, -1, 0))
	want := cloudevents.NewEvent()
	want.SetType("cloudfn.stats.hour.v1")
	want.SetSource("/cloudfn/collect-stats")
	want.SetSubject(domain.HourKey(hour))
	want.SetID(domain.HourKey(hour) + ":1")
	want.SetTime(hour)
	want.SetExtension("cloud", "north")
	data := `{"hour":"` + domain.HourKey(hour) + `","running":2,"total":3,"by_status":{"ACTIVE":2,"SHUTOFF":1},"source":"sampled"}`
	if err := want.SetData(cloudevents.ApplicationJSON, json.RawMessage(data)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want.String(), sink.Events()[2].String()); diff != "" {
		t.Error(diff)
	}

	// A project that comes later makes no hour new that was announced without it.
	env["ALLOWED_PROJECTS"] = p.ID + "," + later.ID
	tick(t, at(t, database, hour.Add(time.Hour), env), 204)
	expect(t, sink, ids(hour, -2, -1, 0, 1))
	if n := len(rows(t, database, later.ID)); n != 3 {
		t.Errorf("its window has %d hours, want 3", n)
	}

	// An hour that has become the oldest of the longest window is still known to have been announced.
	env["STATS_BACKFILL"] = "720h"
	tick(t, at(t, database, hour.Add(720*time.Hour-time.Minute), env), 204)
	got := sink.IDs()
	slices.Sort(got)
	if all, different := len(got), len(slices.Compact(got)); all != 722 || different != all {
		t.Errorf("%d events, %d of them different; want one for each of 722 hours", all, different)
	}
}

// TestASinkThatRefuses gets every hour once it takes them, with the ids of before, and no hour ahead of an older one.
func TestASinkThatRefuses(t *testing.T) {
	t.Parallel()
	p := testkit.NewProject(t)
	answers := []int{500, 404, 202, 302, 503, 202, 202}
	database, hour := testkit.Database(t), nextHour()
	sink := testkit.NewSink(t, func(n int) int { return answers[n-1] })
	app := at(t, database, hour.Add(time.Minute), map[string]string{"ALLOWED_PROJECTS": p.ID, "STATS_BACKFILL": "3h", "K_SINK": sink.URL})
	for i, want := range [][]int{{-2}, {-2, -2}, {-2, -2, -2, -1}, {-2, -2, -2, -1, -1}} {
		tick(t, app, 503)
		expect(t, sink, ids(hour, want...))
		if n := len(rows(t, database, p.ID)); n != 3 {
			t.Errorf("tick %d: %d hours are counted, want 3", i, n)
		}
	}
	tick(t, app, 204)
	tick(t, app, 204)
	expect(t, sink, ids(hour, -2, -2, -2, -1, -1, -1, 0))
	want := map[string]int{}
	for i, tries := range []int{3, 3, 1} {
		want[domain.HourKey(hour.Add(time.Duration(i-2)*time.Hour))] = tries
	}
	if diff := cmp.Diff(want, marks(t, database)); diff != "" {
		t.Error(diff)
	}
}

// TestAnotherCopyIsFaster: an hour that it has announced since we looked is passed over; one that it is at is waited for.
func TestAnotherCopyIsFaster(t *testing.T) {
	t.Parallel()
	p := testkit.NewProject(t)
	for name, tc := range map[string]struct {
		claimed, done string
		status        int
		told          []int
	}{
		"done":   {"null", "clock_timestamp()", 204, []int{-2, 0}},
		"at it":  {"clock_timestamp() + interval '1 minute'", "null", 503, []int{-2}},
		"failed": {"null", "null", 204, []int{-2, -1, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			database, hour := testkit.Database(t), nextHour()
			testkit.SetClock(t, database, hour.Add(time.Minute))
			conn := testkit.Connect(t, database)
			sink := testkit.NewSink(t, func(n int) int {
				if n == 1 { // by now it is known which hours are due
					sql := "insert into jobs (kind, key, claimed_until, done_at, attempts) values ('announce-stats', $1, " + tc.claimed + ", " + tc.done + ", 1)"
					if _, err := conn.Exec(context.Background(), sql, domain.HourKey(hour.Add(-time.Hour))); err != nil {
						t.Error(err)
					}
				}
				return 202
			})
			app := testkit.Start(t, testkit.Env(t, database, map[string]string{"ALLOWED_PROJECTS": p.ID, "STATS_BACKFILL": "3h", "K_SINK": sink.URL}))
			tick(t, app, tc.status)
			expect(t, sink, ids(hour, tc.told...))
		})
	}
}

// TestASinkThatComesLater is told of the window's hours; without one nothing is marked.
func TestASinkThatComesLater(t *testing.T) {
	t.Parallel()
	p := testkit.NewProject(t)
	database, sink, hour := testkit.Database(t), testkit.NewSink(t, nil), nextHour()
	env := map[string]string{"ALLOWED_PROJECTS": p.ID, "STATS_BACKFILL": "3h"}
	tick(t, at(t, database, hour, env), 204)
	if n := testkit.Scalar[int](t, testkit.Connect(t, database), "select count(*)::int from jobs where kind <> 'collect-stats'"); n != 0 {
		t.Errorf("there are %d jobs of other kinds", n)
	}
	env["K_SINK"] = sink.URL
	tick(t, at(t, database, hour.Add(time.Hour), env), 204)
	expect(t, sink, ids(hour, -1, 0, 1))
}

// TestAnIncompleteHour is announced when its last project could be counted, and not before.
func TestAnIncompleteHour(t *testing.T) {
	t.Parallel()
	good, bad := testkit.NewProject(t), testkit.NewProject(t)
	bad.Boot(t, "hidden", 1)
	nova, broken := breakUsage(t, bad.ID)
	database, sink, hour := testkit.Database(t), testkit.NewSink(t, nil), nextHour()
	env := testkit.RedirectTo(t, map[string]string{"compute": nova}).Env(t, "collector")
	env["ALLOWED_PROJECTS"], env["STATS_BACKFILL"], env["K_SINK"] = good.ID+","+bad.ID, "1h", sink.URL
	app := at(t, database, hour.Add(time.Minute), env)
	tick(t, app, 503)
	if expect(t, sink, ids(hour)); len(marks(t, database)) != 0 {
		t.Error("an hour is marked that was not announced")
	}
	broken.Store(false)
	tick(t, app, 204)
	if expect(t, sink, ids(hour, 0)); !t.Failed() {
		var got struct{ Running int }
		if err := sink.Events()[0].DataAs(&got); err != nil || got.Running != 1 {
			t.Errorf("got %v %v, want one running", got, err)
		}
	}
}
