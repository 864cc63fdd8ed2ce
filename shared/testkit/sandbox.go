package testkit

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// Heavy waits until no other heavy test runs, in any process. A test that builds more than a few servers calls it
// first, so that everything is removed before the next one begins: two cores build one test's servers in seconds, but
// those of four tests in minutes. Subtests of a heavy test must not be parallel: the tests that wait occupy all slots.
func Heavy(t testing.TB) {
	t.Helper()
	name := filepath.Join(filepath.Dir(CloudsYAML(t)), "heavy-test.lock")
	file := must(os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600))(t)
	t.Cleanup(func() { file.Close() }) // this releases the lock
	start := time.Now()
	check(t, syscall.Flock(int(file.Fd()), syscall.LOCK_EX))
	t.Logf("waited %.1f s for its turn", time.Since(start).Seconds())
}
