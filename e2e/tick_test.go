//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

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

// every sets the PingSource's schedule.
func every(t testing.TB, schedule string) {
	t.Helper()
	kubectl(t, "patch", "pingsource", "collect-stats", "--type=merge", "-p", `{"spec":{"schedule":"`+schedule+`"}}`)
	kubectl(t, "wait", "pingsource", "collect-stats", "--for=condition=Ready", "--timeout=60s")
}

const never = "0 0 31 2 *" // how a PingSource is suspended: there is no such day

// reconnect makes every function open new connections: only they see the database's clock moved.
func reconnect(t testing.TB) {
	t.Helper()
	conn := testkit.Connect(t, databaseURL)
	if _, err := conn.Exec(context.Background(), "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"); err != nil {
		t.Fatal(err)
	}
}

// TestPingSource wakes collect-stats from zero every minute, is suspended for five hours of the database's clock, and
// fills them at its next tick. An event without the key wakes nothing but a pod, and each counted hour goes to the sink.
func TestPingSource(t *testing.T) {
	token := testkit.Token(t, "demo")
	t.Cleanup(func() { every(t, "0 * * * *") })
	every(t, never)
	toZero(t, "collect-stats")
	conn := testkit.Connect(t, databaseURL)
	for _, table := range []string{"stats_hourly", "stats_projects", "jobs"} {
		if _, err := conn.Exec(t.Context(), "delete from "+table); err != nil {
			t.Fatal(err)
		}
	}
	now := time.Now()
	testkit.SetClock(t, databaseURL, now.Add(-5*time.Hour))
	reconnect(t)

	// Somebody else's PingSource, which does not know the key.
	kn(t, "source", "ping", "create", "stranger", "--schedule", "* * * * *", "--sink", "ksvc:collect-stats")
	testkit.Eventually(t, minutes(3), "the stranger's event is refused", func() bool {
		logs, _ := try("kubectl", "-n", namespace, "logs", "-l", "serving.knative.dev/service=collect-stats", "-c", "user-container", "--tail=-1")
		return strings.Contains(logs, "event refused") && strings.Contains(logs, "pingsources/stranger")
	})
	kn(t, "source", "ping", "delete", "stranger")
	if n := testkit.Scalar[int](t, testkit.Connect(t, databaseURL), "select count(*) from stats_hourly"); n != 0 {
		t.Errorf("the stranger's event led to %d rows", n)
	}

	every(t, "* * * * *")
	testkit.Eventually(t, minutes(3), "the tick wrote the hours", func() bool { return missing(hours(t, token, 24)) == 0 })
	every(t, never)
	toZero(t, "collect-stats")

	clock := testkit.Connect(t, databaseURL)
	if _, err := clock.Exec(t.Context(), "do $$ begin execute format('alter database %I reset search_path', current_database()); end $$; drop schema moved cascade"); err != nil {
		t.Fatal(err)
	}
	reconnect(t)
	if sources := hours(t, token, 24); missing(sources) != 5 || missing(sources[19:]) != 5 {
		t.Errorf("while it is suspended the hours are %v", sources)
	}
	every(t, "* * * * *")
	testkit.Eventually(t, minutes(3), "the next tick fills the gap", func() bool { return missing(hours(t, token, 24)) == 0 })
	announced(t)
}

// announced checks what the sink has got: each hour that is counted, once or more, always with the same id.
func announced(t *testing.T) {
	conn := testkit.Connect(t, databaseURL)
	want := testkit.Scalar[int](t, conn, "select count(distinct hour) from stats_hourly")
	ids := map[string]string{}
	testkit.Eventually(t, minutes(2), fmt.Sprintf("the sink has the events of %d hours", want), func() bool {
		for line := range strings.Lines(kubectl(t, "logs", "-l", "serving.knative.dev/service=sink", "-c", "user-container", "--tail=-1")) {
			document, found := strings.CutPrefix(line, "event ")
			if !found {
				continue
			}
			var event struct{ ID, Type, Subject, Source string }
			if err := json.Unmarshal([]byte(document), &event); err != nil {
				t.Fatal(err)
			}
			if event.Type != "cloudfn.stats.hour.v1" || ids[event.Subject] != "" && ids[event.Subject] != event.ID {
				t.Fatalf("got %s", document)
			}
			ids[event.Subject] = event.ID
		}
		return len(ids) >= want
	})
}
