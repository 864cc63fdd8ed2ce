//go:build e2e

package e2e

import (
	"context"
	"flag"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// manyPods is how many pods share one Postgres.
var manyPods = flag.Int("many-pods", 12, "how many pods TestManyPods starts; 30 give those of docs/measurements.md")

// poolSize is how many connections each pod may open (DATABASE_MAX_CONNS).
const poolSize = 4

// TestManyPods: many pods under load open no more connections than pods x pool, and no request fails. It goes to
// Postgres directly, as all pods of the test cluster do (scripts/e2e).
func TestManyPods(t *testing.T) {
	t.Cleanup(func() { resume(t) })
	suspend(t) // at a tick, event functions start from zero, on the processors that the load needs
	conn := testkit.Connect(t, databaseURL)
	connections := func() (n int) { // 0 when Postgres does not answer; this runs in a goroutine, too
		_ = conn.QueryRow(context.Background(), `select count(*) from pg_stat_activity
			where datname = current_database() and usename = 'cloudfn_stats'`).Scan(&n)
		return n
	}
	others := connections() // of pods that still run
	pods := strconv.Itoa(*manyPods)
	clone(t, "stats", "many", map[string]string{
		"autoscaling.knative.dev/min-scale": pods,
		"autoscaling.knative.dev/max-scale": pods,
	})
	testkit.Eventually(t, minutes(5), fmt.Sprintf("%d pods are ready", *manyPods),
		func() bool { return ready("many") == *manyPods })
	c := client(t, "many", testkit.NewProject(t).Token(t))
	done, peak := make(chan struct{}), make(chan int, 1)
	go func() {
		most := 0
		defer func() { peak <- most }()
		for {
			most = max(most, connections())
			select {
			case <-done:
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	}()
	ids, failed := load(t, c, "/v1/stats", 300, 8, nil)
	close(done)
	most, limit := <-peak, others+*manyPods*poolSize
	noneFailed(t, failed)
	inLog(t, ids)
	fmt.Printf("\n%s: %d answers, %d failed, %d connections to Postgres at the most, limit %d\n",
		t.Name(), len(ids)+len(failed), len(failed), most, limit)
	if most > limit || most == 0 {
		t.Errorf("there were %d connections, the limit is %d", most, limit)
	}
}
