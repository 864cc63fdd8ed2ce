//go:build e2e

package e2e

import (
	"context"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// manyPods is how many pods share one Postgres.
var manyPods = flag.Int("many-pods", 12, "how many pods TestManyPods starts; 30 give the figures of the README")

// poolSize is how many connections each may open (DATABASE_MAX_CONNS).
const poolSize = 4

// TestManyPods: many pods under load open no more connections than pods x pool, and all answers are good; behind
// PgBouncer in transaction mode a handful of connections serve them all.
func TestManyPods(t *testing.T) {
	t.Cleanup(func() { every(t, "* * * * *") })
	every(t, never) // collect-stats connects as the owner, as PgBouncer does
	conn := testkit.Connect(t, databaseURL)
	testkit.Eventually(t, minutes(3), "no other pod is connected", func() bool {
		return testkit.Scalar[int](t, conn, "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()") == 0
	})
	scale := map[string]string{"autoscaling.knative.dev/min-scale": strconv.Itoa(*manyPods), "autoscaling.knative.dev/max-scale": strconv.Itoa(*manyPods)}
	t.Run("directly", func(t *testing.T) {
		clone(t, "stats", "many", scale)
		manyAnswers(t, conn, "cloudfn_functions", *manyPods*poolSize)
	})
	t.Run("through PgBouncer", func(t *testing.T) {
		const size = 10
		clone(t, "stats", "many", scale, "DATABASE_URL", bouncer(t, size))
		manyAnswers(t, conn, "postgres", size)
	})
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

// bouncer runs a PgBouncer in transaction mode before the functions' database, where pods reach it, and gives its URL.
func bouncer(t *testing.T, size int) string {
	t.Helper()
	db, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	name, port := filepath.Base(db.Path), testkit.FreePort(t)
	dir, err := os.MkdirTemp("", "cloudfn-pgbouncer-") //nolint:usetesting // PgBouncer runs as another user, who cannot enter t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	config := fmt.Sprintf("[databases]\n%s = host=%s user=%s dbname=%s\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = %s\nunix_socket_dir =\n"+
		"auth_type = any\npool_mode = transaction\ndefault_pool_size = %d\nmax_client_conn = 1000\nlogfile =\npidfile =\n", name, db.Query().Get("host"), "postgres", name, port, size)
	file := filepath.Join(dir, "pgbouncer.ini")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, "setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "pgbouncer", "-q", file)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatalf("pgbouncer: %v", err)
	}
	t.Cleanup(func() { cancel(); _ = cmd.Wait() })
	command(t, filepath.Join(testkit.Root(), "scripts", "cluster"), "expose", port)
	return fmt.Sprintf("postgres://postgres:e2e-canary@%s:%s/%s?default_query_exec_mode=exec", host, port, name)
}
