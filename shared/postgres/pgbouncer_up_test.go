package postgres_test

import (
	"net/url"
	process "os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

var startPgBouncer = sync.OnceValues(func() ([]byte, error) {
	return process.Command(filepath.Join(testkit.Root(), "scripts", "pgbouncer"), "up").CombinedOutput()
})

// behindPgBouncer returns the URL of a database of the checkout's cluster behind a PgBouncer in transaction mode.
func behindPgBouncer(t testing.TB, database string) string {
	t.Helper()
	if out, err := startPgBouncer(); err != nil {
		t.Fatalf("no PgBouncer, so nothing is tested behind one: %v\n%s", err, out)
	}
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	query := u.Query()
	query.Set("port", "6432")
	query.Set("default_query_exec_mode", "cache_describe")
	u.RawQuery = query.Encode()
	return u.String()
}
