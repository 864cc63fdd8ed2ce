package process_test

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

func sandbox(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.Command(filepath.Join(testkit.Root(), "scripts", "sandbox"), args...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("scripts/sandbox %v: %v\n%s", args, err, out)
	}
}

// stopServices stops parts of the shared sandbox. They run again at the end of the test.
func stopServices(t *testing.T, names ...string) {
	t.Helper()
	t.Cleanup(func() { startServices(t, names...) })
	sandbox(t, append([]string{"stop"}, names...)...)
}

// startServices starts them again and waits until they serve.
func startServices(t *testing.T, names ...string) {
	t.Helper()
	sandbox(t, append([]string{"start"}, names...)...)
}

// stopCell makes the database of Nova's cell unreachable for Nova's API, until startCell or the end of the test.
func stopCell(t *testing.T) {
	t.Helper()
	t.Cleanup(func() { startCell(t) })
	sandbox(t, "cell-down")
}

func startCell(t *testing.T) {
	t.Helper()
	sandbox(t, "cell-up")
}
