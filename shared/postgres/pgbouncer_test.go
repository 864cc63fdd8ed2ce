package postgres_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	process "os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// pooled is set in the process of the tests that TestStoresBehindPgBouncer runs again.
const pooled = "CLOUDFN_TEST_PGBOUNCER"

// representative matches tests of features that may break behind PgBouncer: JSON and arrays as parameters, batches,
// COPY, locks of a transaction, claims, concurrent statements.
const representative = "^(TestListRequests|TestPlaceTwice|TestFinalize|TestOtherProjects|TestConnectRaces|TestAdopt|" +
	"TestAnnounceTrustIsUnique|TestJobs|TestPolls|TestSessions|TestClaim|TestFenced|TestClaimActionsConcurrently|" +
	"TestKeyedAction|TestDeployment|TestRecordResources|TestGrantOnce|" +
	"TestChangeCallbackDuringDelivery|TestReadsOfRemoteConnections|TestStatsRetention)$"

// TestStoresBehindPgBouncer runs representative tests of the stores again behind a real PgBouncer in transaction mode.
func TestStoresBehindPgBouncer(t *testing.T) {
	if os.Getenv(pooled) != "" {
		t.Skip("this is the second run")
	}
	if out, err := startPgBouncer(); err != nil && os.Getenv("TEST_CLOUD") == "none" {
		t.Skipf("left out: make check needs no root, and there is no PgBouncer: %s", out)
	}
	cmd := process.Command(os.Args[0], "-test.v", "-test.run", representative, "-test.timeout", "10m")
	cmd.Env = append(os.Environ(), pooled+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	for name := range strings.SplitSeq(strings.Trim(representative, "^()$"), "|") {
		if !strings.Contains(string(out), "--- PASS: "+name+" ") {
			t.Errorf("%s was not run behind PgBouncer", name)
		}
	}
}

// TestPgBouncerTakesOurSettings compares those of knative/components/pgbouncer with the ones in force.
func TestPgBouncerTakesOurSettings(t *testing.T) {
	t.Parallel()
	if out, err := startPgBouncer(); err != nil && os.Getenv("TEST_CLOUD") == "none" {
		t.Skipf("left out: make check needs no root, and there is no PgBouncer: %s", out)
	}
	text := must(os.ReadFile(filepath.Join(testkit.Root(), "knative", "components", "pgbouncer", "pgbouncer.ini")))(t)
	admin := behindPgBouncer(t, testkit.Database(t))
	u := must(url.Parse(admin))(t)
	u.Path = "/pgbouncer"
	u.RawQuery = strings.ReplaceAll(u.RawQuery, "cache_describe", "simple_protocol")
	rows := must(testkit.Connect(t, u.String()).Query(t.Context(), "show config"))(t)
	inForce := map[string]string{}
	for rows.Next() {
		values := must(rows.Values())(t)
		inForce[fmt.Sprint(values[0])] = fmt.Sprint(values[1])
	}
	for _, set := range regexp.MustCompile(`(?m)^(\w+) = (\S+)$`).FindAllStringSubmatch(string(text), -1) {
		if name := set[1]; name != "auth_type" && inForce[name] != set[2] { // scripts/pgbouncer trusts its socket
			t.Errorf("%s is %q, want %q", name, inForce[name], set[2])
		}
	}
}

// TestRolesShareTheConnections: each function has a role of its own, and PgBouncer a pool for each role. All of them
// together stay below max_db_connections, and idle connections of one role make room for another's.
func TestRolesShareTheConnections(t *testing.T) {
	t.Parallel()
	if out, err := startPgBouncer(); err != nil && os.Getenv("TEST_CLOUD") == "none" {
		t.Skipf("left out: make check needs no root, and there is no PgBouncer: %s", out)
	}
	database := testkit.Database(t)
	through, conn := behindPgBouncer(t, database), testkit.Connect(t, database)
	for n := range 6 { // six pools of ten are more than all may be
		role := fmt.Sprintf("pool_%d", n+1)
		exec(t, conn, fmt.Sprintf(
			`do $$ begin create role %s login; exception when duplicate_object then end $$`, role))
		t.Cleanup(func() {
			if _, err := conn.Exec(context.Background(), "drop role if exists "+role); err != nil {
				t.Error(err)
			}
		})
		pool := open(t, withParameter(t, through, "user", role)).Pool()
		concurrently(12, func(int) {
			if _, err := pool.Exec(t.Context(), "select pg_sleep(0.05)"); err != nil {
				t.Errorf("%s: %v", role, err)
			}
		})
		if got := testkit.Scalar[int](t, conn, `select count(*)::int from pg_stat_activity
where datname = current_database() and usename like 'pool\_%'`); got > 45 {
			t.Errorf("there are %d connections", got)
		}
	}
}

var startPgBouncer = sync.OnceValues(func() ([]byte, error) {
	return process.Command(filepath.Join(testkit.Root(), "scripts", "pgbouncer"), "up").CombinedOutput()
})

// behindPgBouncer returns the URL of a database of the checkout's cluster behind a PgBouncer in transaction mode.
func behindPgBouncer(t testing.TB, database string) string {
	t.Helper()
	if out, err := startPgBouncer(); err != nil {
		t.Fatalf("no PgBouncer, so nothing is tested behind one: %v\n%s", err, out)
	}
	u := must(url.Parse(database))(t)
	query := u.Query()
	query.Set("port", "6432")
	query.Set("default_query_exec_mode", "cache_describe")
	u.RawQuery = query.Encode()
	return u.String()
}
