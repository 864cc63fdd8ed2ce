package testkit

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// StopPieces stops parts of the shared sandbox; at the test's end they run again, whatever became of it. Only the
// tests of faults do so, which run by themselves.
func StopPieces(t testing.TB, names ...string) {
	t.Helper()
	t.Cleanup(func() { StartPieces(t, names...) })
	script(t, append([]string{"sandbox", "stop"}, names...)...)
}

// StartPieces starts them again and waits until they serve.
func StartPieces(t testing.TB, names ...string) {
	t.Helper()
	script(t, append([]string{"sandbox", "start"}, names...)...)
}

// CellDown makes the database of Nova's cell unreachable for its API; CellUp brings it back, and so does the
// test's end.
func CellDown(t testing.TB) {
	t.Helper()
	t.Cleanup(func() { CellUp(t) })
	script(t, "sandbox", "cell-down")
}

// CellUp ends CellDown.
func CellUp(t testing.TB) { t.Helper(); script(t, "sandbox", "cell-up") }

// Heavy is for a test that keeps the sandbox busy, with more than a few servers: it waits until no other one does so, in
// whatever process. Two cores make servers for one of them in seconds, and for four of them in minutes. Call it first, so
// that what the test made is gone before the next one begins. Its subtests are not parallel: they would need the places among
// the running tests that those hold which wait for this one.
func Heavy(t testing.TB) {
	t.Helper()
	file, err := os.OpenFile(filepath.Join(filepath.Dir(CloudsYAML(t)), "heavy-test.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() }) // which ends the lock
	start := time.Now()
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	t.Logf("waited %.1f s for its turn", time.Since(start).Seconds()) // scripts/testtime reads this
}
