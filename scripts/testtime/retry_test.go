package main

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestRetry runs a module of its own, in which one test passes the second time and another never does.
func TestRetry(t *testing.T) { //nolint:paralleltest // it changes the working directory
	t.Chdir(t.TempDir())
	files := map[string]string{
		"go.mod": "module github.com/cloudfn/cloudfn\n\ngo 1.26\n",
		"a/a_test.go": `package a

import ("os"; "testing")

func TestSecondTime(t *testing.T) {
	t.Run("part", func(t *testing.T) {
		if _, err := os.Stat("ran"); err != nil {
			os.WriteFile("ran", nil, 0o600)
			t.Error("the first time")
		}
	})
}
`,
		"b/b_test.go": `package b

import "testing"

func TestNever(t *testing.T) { t.Error("never") }
func TestGood(t *testing.T) {}
`,
		"c/c_test.go": `package c

import "testing"

func TestPanics(t *testing.T) { panic("oh") }
`,
	}
	for name, text := range files {
		if folder, _, isBelow := strings.Cut(name, "/"); isBelow {
			if err := os.Mkdir(folder, 0o750); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name    string
		limit   int
		pkgs    []string
		retried int
		last    string
	}{
		{"more than the limit", 1, []string{"./a", "./b"}, 0, "1 passed, 3 failed, 0 skipped"},
		{"one passes, one does not", 2, []string{"./a", "./b"}, 1, "3 passed, 1 failed, 0 skipped"},
		{"passes at once", 2, []string{"./a"}, 0, "2 passed, 0 failed, 0 skipped"},
		{"a panic", 2, []string{"./c"}, 0, "0 passed, 1 failed, 0 skipped"},
	} {
		if c.limit == 2 && len(c.pkgs) == 2 {
			_ = os.Remove("a/ran")
		}
		var out bytes.Buffer
		r := newResults(&out)
		args := append([]string{"-vet=off", "-run", "^Test"}, c.pkgs...)
		if _, err := goTest(r, args); err != nil {
			t.Fatal(err)
		}
		if err := r.retry(args, c.limit); err != nil {
			t.Fatal(err)
		}
		r.print()
		if len(r.retried) != c.retried || !strings.HasSuffix(out.String(), c.last+"\n") {
			t.Errorf("%s: retried %q\n%s", c.name, r.retried, out.String())
		}
		if c.retried > 0 && !strings.Contains(out.String(), "the test: a TestSecondTime ***") {
			t.Errorf("%s: it is not named\n%s", c.name, out.String())
		}
	}
}

// TestRetryArgs keeps the flags and leaves out the packages.
func TestRetryArgs(t *testing.T) {
	t.Parallel()
	got := retryArgs([]string{"-race", "-tags", "faults", "-run", "^TestFault", "./test/process", "./docs/..."},
		failure{"test/process", "TestFaultX"})
	want := []string{"-race", "-tags", "faults", "-count=1", "-run", "^TestFaultX$", "./test/process"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}
