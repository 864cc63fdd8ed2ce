package collectstats

import (
	"context"
	"encoding/json"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
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
		"hour": key, "running": 2., "total": 3.,
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
