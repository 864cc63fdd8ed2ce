package process_test

import (
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/google/go-cmp/cmp"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// announcing is the environment of a daemon that counts the last hours of one project for the sink. It watches no
// nodes: other tests stop and disable some at the same time, and the sink would get those events, too.
func announcing(
	t *testing.T, database string, project *testkit.Project, sink *testkit.Sink, hours string,
) map[string]string {
	t.Helper()
	return testkit.Env(t, database, map[string]string{
		"ALLOWED_PROJECTS": project.ID, "STATS_BACKFILL": hours, "K_SINK": sink.URL, "NODES_OS_CLOUD": "",
	})
}

// announced returns the hours that the sink has received, each once.
func announced(sink *testkit.Sink) []string {
	var hours []string
	for _, e := range sink.Events() {
		if e.Type() == domain.StatsEvent && !slices.Contains(hours, e.Subject()) {
			hours = append(hours, e.Subject())
		}
	}
	slices.Sort(hours)
	return hours
}

// hoursTo are the keys of the n hours up to one.
func hoursTo(last time.Time, n int) []string {
	var keys []string
	for _, h := range domain.Hours(last, n) {
		keys = append(keys, domain.HourKey(h))
	}
	return keys
}

// nextHour is a full hour that is to come, and that the database's clock is put a minute past.
func nextHour(t *testing.T, database string) time.Time {
	t.Helper()
	hour := time.Now().UTC().Truncate(time.Hour).Add(time.Hour)
	testkit.SetClock(t, database, hour.Add(time.Minute))
	return hour
}

// TestLongTheDaemonAnnouncesWhatStatsShows: the data of each event is the hour as GET /v1/stats has it.
func TestLongTheDaemonAnnouncesWhatStatsShows(t *testing.T) {
	t.Parallel()
	project := testkit.NewProject(t)
	project.Boot(t, "shown", 1)
	project.Grant(t, project.UserID, "admin") // who may look at the cloud
	database, sink := testkit.Database(t), testkit.NewSink(t, nil)
	hour := nextHour(t, database)
	env := announcing(t, database, project, sink, "3h")
	env["K_CE_OVERRIDES"] = `{"extensions":{"cloud":"north"}}`
	p := testkit.Spawn(t, env) // its own first tick is enough
	testkit.Eventually(t, 3*time.Minute, "three hours are announced", func() bool {
		return cmp.Equal(announced(sink), hoursTo(hour, 3))
	})
	var shown struct{ Hours []map[string]any }
	p.As(project.Token(t)).Get(t, "/v1/stats?scope=cloud&hours=3").JSON(t, &shown)
	events := map[string]map[string]any{}
	for _, e := range sink.Events() {
		var data map[string]any
		if err := json.Unmarshal(e.Data(), &data); err != nil {
			t.Fatal(err)
		}
		events[e.Subject()] = data
		if e.Source() != "/cloudfn" || e.ID() != e.Subject()+":1" || domain.HourKey(e.Time()) != e.Subject() ||
			e.Extensions()["cloud"] != "north" {
			t.Errorf("got %s", e)
		}
	}
	for _, h := range shown.Hours {
		if diff := cmp.Diff(h, events[h["hour"].(string)]); diff != "" {
			t.Error(diff)
		}
	}
}

// TestLongASinkThatComesLater gets the earlier hours, too. Without a sink nothing is due.
func TestLongASinkThatComesLater(t *testing.T) {
	t.Parallel()
	project := testkit.NewProject(t)
	database, sink := testkit.Database(t), testkit.NewSink(t, nil)
	hour := nextHour(t, database)
	env := announcing(t, database, project, sink, "3h")
	without := maps.Clone(env)
	delete(without, "K_SINK")
	first := testkit.Spawn(t, without)
	conn := testkit.Connect(t, database)
	testkit.Eventually(t, 3*time.Minute, "three hours are in the outbox", func() bool {
		return testkit.Scalar[int](t, conn, "select count(*)::int from events where subject like '%:00:00Z'") == 3
	})
	first.Kill()
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from deliveries"); n != 0 {
		t.Errorf("there are %d deliveries to no one", n)
	}
	second := testkit.Spawn(t, env)
	testkit.Eventually(t, 3*time.Minute, "three hours are announced", func() bool {
		return cmp.Equal(announced(sink), hoursTo(hour, 3))
	})
	second.Kill()
	testkit.Spawn(t, without)
	testkit.Eventually(t, 3*time.Minute, "the sink is forgotten", func() bool {
		return testkit.Scalar[int](t, conn, "select count(*)::int from callbacks") == 0
	})
}

// TestLongAnnounceSurvivesKill kills a replica after the sink has got an hour and before it could note that: once its
// claims have ended another replica sends the same event again, and the rest.
func TestLongAnnounceSurvivesKill(t *testing.T) {
	t.Parallel()
	project := testkit.NewProject(t)
	database := testkit.Database(t)
	release := make(chan struct{})
	unblock := sync.OnceFunc(func() { close(release) })
	sink := testkit.NewSink(t, func(n int) int {
		if n == 1 {
			<-release
		}
		return 202
	})
	t.Cleanup(unblock)
	hour := nextHour(t, database)
	env := announcing(t, database, project, sink, "2h")
	env["CALLBACK_TIMEOUT"] = "1s"
	first := testkit.Spawn(t, env)
	testkit.Eventually(t, 3*time.Minute, "the sink has the first hour", func() bool { return len(sink.IDs()) > 0 })
	first.Kill()
	unblock()
	testkit.Spawn(t, env)
	conn := testkit.Connect(t, database)
	testkit.Eventually(t, 3*time.Minute, "another replica has delivered them all", func() bool {
		return testkit.Scalar[int](t, conn, "select count(*)::int from deliveries where status = 'delivered'") == 2
	})
	if diff := cmp.Diff(hoursTo(hour, 2), announced(sink)); diff != "" {
		t.Error(diff)
	}
	events := sink.Events()
	repeats := slices.DeleteFunc(slices.Clone(events),
		func(e cloudevents.Event) bool { return e.ID() != events[0].ID() })
	if len(repeats) < 2 || repeats[0].String() != repeats[1].String() {
		t.Errorf("the first was not repeated as it was: %v", repeats)
	}
}
