// Package testkit runs tests against the real parts: a migrated Postgres database for each, the sandbox's OpenStack
// with projects of their own, and cloudfn in this process or in others that can be killed. Only _test.go files import
// it.
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

	"github.com/gophercloud/gophercloud/v2/pagination"
)

// Root returns the checkout's folder.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..")
}

// script runs one of the project's scripts, and returns its output.
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

// Eventually polls until ok, or fails the test.
func Eventually(t testing.TB, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !ok(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", limit, what)
		}
	}
}

// must gives the value of a call, and fails the test if the call failed: must(os.ReadFile(name))(t).
func must[T any](value T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		check(t, err)
		return value
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// all reads all pages of a list.
func all[T any](t testing.TB, list pagination.Pager, extract func(pagination.Page) ([]T, error)) []T {
	t.Helper()
	return must(extract(must(list.AllPages(context.Background()))(t)))(t)
}
