package testkit

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Chromium returns the browser for the tests in test/browser. A failure says how to install what is missing.
func Chromium(t testing.TB) string {
	t.Helper()
	const hint = "run scripts/browser up"
	if _, err := exec.LookPath("node"); err != nil {
		t.Fatalf("Node.js is not installed: %s (%v)", hint, err)
	}
	if _, err := os.Stat(filepath.Join(Root(), "test", "browser", "node_modules", "playwright-core")); err != nil {
		t.Fatalf("the packages of test/browser/ are not installed: %s (%v)", hint, err)
	}
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatalf("Chromium is not installed: %s (%v)", hint, err)
	}
	return chromium
}
