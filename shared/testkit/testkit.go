// Package testkit gives tests the real parts: a migrated Postgres database for each, the sandbox's OpenStack
// with projects of their own, and cloudfn itself, in this process or in others that can be killed. Only
// _test.go files import it.
package testkit

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// Root is the checkout's folder.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..")
}

// script runs one of the project's scripts and gives what it printed. A test that needs what cannot be had
// fails: it is never skipped in silence.
func script(t testing.TB, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(Root(), "scripts", args[0]), args[1:]...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("scripts/%s failed: %v", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out))
}

// Eventually waits until ok, or fails the test with what it was waiting for.
func Eventually(t testing.TB, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !ok(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", limit, what)
		}
	}
}
