package main

import (
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// announcing is a copy of collect-stats that counts the last hours of one project and tells the sink.
func announcing(t *testing.T, database string, project *testkit.Project, sink *testkit.Sink, hours string) map[string]string {
	t.Helper()
	return testkit.Env(t, database, map[string]string{
		"FUNCTION_TARGET": "collect-stats", "ALLOWED_PROJECTS": project.ID, "STATS_BACKFILL": hours, "K_SINK": sink.URL,
	})
}

// announced are the ids of the events of the given hours.
func announced(hours ...time.Time) []string {
	var ids []string
	for _, h := range hours {
		ids = append(ids, domain.HourKey(h)+":1")
	}
	return ids
}

// try sends a tick to a copy that may die.
func try(t *testing.T, p *testkit.Process) int {
	t.Helper()
	a, err := p.TryTick(t, "collect-stats")
	if err != nil {
		return 0
	}
	return a.Status
}

// TestTheDaemonAnnouncesWhatStatsShows: the data of each event is the hour as GET /v1/stats has it.
func TestTheDaemonAnnouncesWhatStatsShows(t *testing.T) {
	t.Parallel()
	project := testkit.NewProject(t)
	project.Boot(t, "shown", 1)
	project.Grant(t, project.UserID, "admin") // who may look at the cloud
	database, sink := testkit.Database(t), testkit.NewSink(t, nil)
	testkit.SetClock(t, database, time.Now().Truncate(time.Hour).Add(time.Hour+time.Minute))
	env := announcing(t, database, project, sink, "3h")
	delete(env, "FUNCTION_TARGET")
	p := testkit.Spawn(t, env) // its own first tick is enough
	testkit.Eventually(t, time.Minute, "three hours are announced", func() bool { return len(sink.IDs()) == 3 })
	var shown struct{ Hours []json.RawMessage }
	p.As(project.Token(t)).Get(t, "/v1/stats?scope=cloud&hours=3").JSON(t, &shown)
	var told []json.RawMessage
	for _, e := range sink.Events() {
		told = append(told, e.Data())
	}
	if diff := cmp.Diff(shown.Hours, told); diff != "" {
		t.Error(diff)
	}
}

// TestTwoCopiesAnnounce at the turn of the hour, when each works for an hour of its own and both would send what is
// left: the later one sends nothing while the other is at an older hour, so that each is sent once, in order.
func TestTwoCopiesAnnounce(t *testing.T) {
	t.Parallel()
	project := testkit.NewProject(t)
	database := testkit.Database(t)
	release := make(chan struct{})
	letGo := sync.OnceFunc(func() { close(release) })
	sink := testkit.NewSink(t, func(n int) int {
		if n == 2 {
			<-release
		}
		return 202
	})
	t.Cleanup(letGo)
	env := announcing(t, database, project, sink, "3h")
	hour := time.Now().UTC().Truncate(time.Hour).Add(time.Hour)
	testkit.SetClock(t, database, hour.Add(-10*time.Minute))
	early, late := testkit.Spawn(t, env), testkit.Spawn(t, env)
	var all sync.WaitGroup
	all.Go(func() {
		if status := try(t, early); status != 204 {
			t.Errorf("the early copy answered %d", status)
		}
	})
	testkit.Eventually(t, time.Minute, "the early copy is at its second hour", func() bool { return len(sink.IDs()) == 2 })
	// From here on the late copy has all of eventx.SendTimeout: the hour turns at once, and the claims move with it.
	testkit.SetClock(t, database, hour)
	if _, err := testkit.Connect(t, database).Exec(t.Context(), "update jobs set claimed_until = claimed_until + interval '10 minutes'"); err != nil {
		t.Fatal(err)
	}
	if status := try(t, late); status != 503 {
		t.Errorf("the late copy answered %d while the other was at an older hour", status)
	}
	letGo()
	all.Wait()
	testkit.Eventually(t, time.Minute, "the late copy is done", func() bool { return try(t, late) == 204 })
	want := announced(hour.Add(-3*time.Hour), hour.Add(-2*time.Hour), hour.Add(-time.Hour), hour)
	if diff := cmp.Diff(want, sink.IDs()); diff != "" {
		t.Error(diff)
	}
}

// TestAnnounceSurvivesKill kills a copy after the sink has got an hour and before it could note that: once the dead
// one's claims have ended another copy sends the same event again, and then the rest.
func TestAnnounceSurvivesKill(t *testing.T) {
	t.Parallel()
	project := testkit.NewProject(t)
	database := testkit.Database(t)
	release := make(chan struct{})
	letGo := sync.OnceFunc(func() { close(release) })
	sink := testkit.NewSink(t, func(n int) int {
		if n == 1 {
			<-release
		}
		return 202
	})
	t.Cleanup(letGo)
	env := announcing(t, database, project, sink, "2h")
	env["EVENT_TIMEOUT"] = "10s"
	testkit.SetClock(t, database, time.Now().Truncate(time.Hour).Add(90*time.Minute)) // no hour turns meanwhile
	first, second := testkit.Spawn(t, env), testkit.Spawn(t, env)
	var all sync.WaitGroup
	all.Go(func() { try(t, first) })
	testkit.Eventually(t, 20*time.Second, "the sink has the first hour", func() bool { return len(sink.IDs()) == 1 })
	first.Kill()
	all.Wait()
	letGo()
	testkit.Eventually(t, time.Minute, "another copy has sent them all", func() bool { return second.Tick(t, "collect-stats").Status == 204 && len(sink.IDs()) > 1 })
	conn := testkit.Connect(t, database)
	marks := testkit.Pairs(t, conn, "select key || ':1', attempts from jobs where kind = 'announce-stats' and done_at is not null")
	done := slices.Sorted(maps.Keys(marks))
	if len(done) != 2 || marks[done[0]] != 2 || marks[done[1]] != 1 {
		t.Fatalf("the marks are %v", marks)
	}
	events := sink.Events()
	if diff := cmp.Diff([]string{done[0], done[0], done[1]}, sink.IDs()); diff != "" {
		t.Error(diff)
	} else if diff := cmp.Diff(events[0].String(), events[1].String()); diff != "" {
		t.Errorf("the repeat is another event: %s", diff)
	}
}
