//go:build e2e

package e2e

import (
	"context"
	"flag"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// manyPods is how many pods share one Postgres.
var manyPods = flag.Int("many-pods", 12, "how many pods TestManyPods starts; 30 give the figures of the README")

// poolSize is how many connections a pod opens (DATABASE_MAX_CONNS).
const poolSize = 4

// TestManyPods: many pods under load open no more connections than their pools have, and all answers are good.
func TestManyPods(t *testing.T) {
	conn := testkit.Connect(t, databaseURL)
	most := strconv.Itoa(*manyPods)
	scale := map[string]string{"autoscaling.knative.dev/min-scale": most, "autoscaling.knative.dev/max-scale": most}
	clone(t, "stats", "many", scale)
	manyAnswers(t, conn, "cloudfn_functions", poolSize**manyPods)
}

// manyAnswers loads the pods and watches the connections of that role, which must stay within the limit.
func manyAnswers(t *testing.T, conn *pgx.Conn, role string, limit int) {
	t.Helper()
	testkit.Eventually(t, minutes(5), fmt.Sprintf("%d pods are ready", *manyPods), func() bool { return ready("many") == *manyPods })
	project := testkit.NewProject(t)
	c := client(t, "many", project.Token(t))
	mine := testkit.Scalar[int](t, conn, "select pg_backend_pid()")
	connections := func() (n int) { // 0 when Postgres does not answer; this runs in a goroutine, too
		_ = conn.QueryRow(context.Background(), "select count(*) from pg_stat_activity where datname = current_database() and usename = $1 and pid <> $2", role, mine).Scan(&n)
		return n
	}
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
	most := <-peak
	noneFailed(t, failed)
	inLog(t, ids)
	fmt.Printf("\n%s: %d answers, %d failed, %d connections to Postgres at the most, limit %d\n", t.Name(), len(ids)+len(failed), len(failed), most, limit)
	if most > limit || most == 0 {
		t.Errorf("there were %d connections, the limit is %d", most, limit)
	}
}
