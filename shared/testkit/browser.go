package testkit

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Chromium is the browser that the tests in test/browser/ use. It fails with how to get what is missing.
func Chromium(t testing.TB) string {
	t.Helper()
	const mend = "run scripts/browser up"
	if _, err := exec.LookPath("node"); err != nil {
		t.Fatalf("there is no Node.js to test the page with: %s (%v)", mend, err)
	}
	if _, err := os.Stat(filepath.Join(Root(), "test", "browser", "node_modules", "playwright-core")); err != nil {
		t.Fatalf("the packages of test/browser/ are not installed: %s (%v)", mend, err)
	}
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatalf("there is no Chromium to test the page in: %s (%v)", mend, err)
	}
	return chromium
}
