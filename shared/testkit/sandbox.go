package testkit

import "testing"

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
