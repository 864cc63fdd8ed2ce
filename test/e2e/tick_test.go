//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

func minutes(n int) time.Duration { return time.Duration(n) * time.Minute }

// hours is what stats shows of a project: the source of each hour, oldest first.
func hours(t testing.TB, token string, n int) (sources []string) {
	t.Helper()
	var answer struct{ Hours []struct{ Source string } }
	client(t, "stats", token).Get(t, fmt.Sprintf("/v1/stats?hours=%d", n)).JSON(t, &answer)
	for _, h := range answer.Hours {
		sources = append(sources, h.Source)
	}
	return sources
}

func missing(sources []string) (n int) {
	for _, s := range sources {
		if s == "missing" {
			n++
		}
	}
	return n
}

// every sets the schedule of a function's PingSource.
func every(t testing.TB, function, schedule string) {
	t.Helper()
	kubectl(t, "patch", "pingsource", function, "--type=merge", "-p", `{"spec":{"schedule":"`+schedule+`"}}`)
	kubectl(t, "wait", "pingsource", function, "--for=condition=Ready", "--timeout=60s")
}

const never = "0 0 31 2 *" // how a PingSource is suspended: there is no such day

// suspend suspends both PingSources.
func suspend(t testing.TB) {
	t.Helper()
	every(t, "clock", never)
	every(t, "collect-stats", never)
}

// resume gives both PingSources the schedules that are declared.
func resume(t testing.TB) {
	t.Helper()
	every(t, "clock", "* * * * *")
	every(t, "collect-stats", "0 * * * *")
}

// moveClock moves the database's clock for all functions, until back is called or the test ends.
func moveClock(t *testing.T, to time.Time) (back func()) {
	t.Helper()
	testkit.SetClock(t, databaseURL, to)
	var once sync.Once
	back = func() {
		once.Do(func() {
			testkit.SetClock(t, databaseURL, time.Now())
			// A migration makes its tables in the first schema of the search_path.
			const sql = `do $$ begin execute format('alter database %I reset search_path', current_database()); end $$`
			if _, err := testkit.Pool(t, databaseURL).Exec(context.Background(), sql); err != nil {
				t.Error(err)
			}
			reconnect(t)
		})
	}
	t.Cleanup(back)
	reconnect(t)
	return back
}

// reconnect makes every function open new connections: only they see the database's clock moved.
func reconnect(t testing.TB) {
	t.Helper()
	conn := testkit.Connect(t, databaseURL)
	const sql = `select pg_terminate_backend(pid) from pg_stat_activity
		where datname = current_database() and pid <> pg_backend_pid()`
	if _, err := conn.Exec(context.Background(), sql); err != nil {
		t.Fatal(err)
	}
	testkit.Pool(t, databaseURL).Reset() // its connections are ended, too
}

// TestPingSource: the clock wakes collect-stats while hours are missing. It is suspended for five hours of the
// database's clock, and has them filled at its next tick. Each counted hour goes to the sink.
func TestPingSource(t *testing.T) {
	token := testkit.Token(t, "demo")
	began := time.Now().UTC().Format(time.RFC3339)
	t.Cleanup(func() { resume(t) })
	suspend(t)
	toZero(t, "collect-stats")
	conn := testkit.Connect(t, databaseURL)
	// The streams know which events the sink has.
	for _, table := range []string{"stats_hourly", "stats_projects", "jobs", "events", "streams"} {
		if _, err := conn.Exec(t.Context(), "delete from "+table); err != nil {
			t.Fatal(err)
		}
	}
	back := moveClock(t, time.Now().Add(-5*time.Hour))

	resume(t)
	testkit.Eventually(t, minutes(3), "the tick wrote the hours", func() bool {
		return missing(hours(t, token, 24)) == 0
	})
	suspend(t)
	toZero(t, "collect-stats")

	back()
	sources := hours(t, token, 24)
	// 6 when an hour began meanwhile
	if gap := missing(sources); gap < 5 || gap > 6 || missing(sources[24-gap:]) != gap {
		t.Errorf("while it is suspended the hours are %v", sources)
	}
	resume(t)
	testkit.Eventually(t, minutes(3), "the next tick fills the gap",
		func() bool { return missing(hours(t, token, 24)) == 0 })
	announced(t, began)
}

// announced waits until the sink has got just the hours that are counted, once or more, always with the same id.
func announced(t *testing.T, since string) {
	rows, _ := testkit.Pool(t, databaseURL).Query(t.Context(),
		`select distinct to_char(hour at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') from stats_hourly order by 1`)
	want, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	testkit.Eventually(t, minutes(2), fmt.Sprintf("the sink has the events of %d hours", len(want)), func() bool {
		ids := map[string]string{}
		for line := range strings.Lines(kubectl(t, "logs", "-l", "serving.knative.dev/service=sink",
			"-c", "user-container",
			"--since-time="+since, "--tail=-1")) {
			document, found := strings.CutPrefix(line, "event ")
			if !found {
				continue
			}
			var event struct{ ID, Type, Subject string }
			if err := json.Unmarshal([]byte(document), &event); err != nil {
				t.Fatal(err)
			}
			if event.Type != "cloudfn.stats.hour.v1" {
				continue // the sink gets whatever happens
			}
			if ids[event.Subject] != "" && ids[event.Subject] != event.ID {
				t.Fatalf("got %s", document)
			}
			ids[event.Subject] = event.ID
		}
		got = slices.Sorted(maps.Keys(ids))
		return len(got) >= len(want)
	})
	if !slices.Equal(got, want) {
		t.Errorf("the sink has got %v, counted are %v", got, want)
	}
}
