package main

import (
	"bytes"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLongNew begins a function of each kind in a copy of this checkout. What is written compiles, and what needs no
// cloud passes its tests.
func TestLongNew(t *testing.T) {
	if os.Getenv("TEST_CLOUD") == "none" {
		t.Skip("left out: it compiles a whole copy, after every change")
	}
	database := testkit.EmptyDatabase(t) // the copy's tests create theirs in the same cluster
	checkout(t)
	for _, args := range [][]string{{"external-ips", "http"}, {"run-budgets", "event"}} {
		var out bytes.Buffer
		if err := run(&out, args); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), "created functions/"+args[0]+"/function.go\n") ||
			!strings.Contains(out.String(), "By hand") {
			t.Errorf("it printed %s", &out)
		}
		if err := run(io.Discard, args); err == nil || !strings.Contains(err.Error(), "functions/"+args[0]+" exists") {
			t.Errorf("the second time: %v", err)
		}
	}
	if unformatted := command(t, "gofmt", "-l", "functions", "test", "shared", "cmd"); unformatted != "" {
		t.Errorf("gofmt would change %s", unformatted)
	}
	contains(t, "functions/main.go",
		"functions/deliver-events\"\n\texternalips \"github.com/cloudfn/cloudfn/functions/external-ips\"\n")
	command(t, "go", "run", "./scripts/declarations")
	for path, text := range map[string]string{
		"functions/openapi.yaml":             "\n  cloudfn.external_ip.state.v1:\n",
		"shared/postgres/grants.sql":         "on external_ips to cloudfn_external_ips",
		"knative/services/run-budgets.yaml":  "autoscaling.knative.dev/window: 10s",
		"functions/clock/function.go":        "\"run_budgets_jobs\": \"select (due_at, claimed_until)\"",
		"knative/services/external-ips.yaml": "name: external-ips",
		"shared/domain/externalip.go":        "type ExternalIP struct",
		"shared/postgres/runbudgets.go":      "due_at <= now() and ` + due.Unclaimed(\"j\", \"now()\")",
		"cmd/cloudfn/internal/externalips":   "",
		"shared/postgres/migrations":         "",
		"shared/postgres/kind.go":            "\t{table: \"external_ips\"},\n",
		"knative/README.md":                  "kn service apply external-ips ",
		"functions/callbacks/README.md":      "| `cloudfn.external_ip.state.v1` | the external IP |",
	} {
		contains(t, path, text)
	}
	t.Setenv("TEST_DATABASE_URL", database)
	t.Setenv("TEST_CLOUD", "none")
	command(t, "go", "vet", "./functions/external-ips", "./cmd/cloudfn/internal/cli", "./test/contract")
	t.Log(command(t, "go", "test", "-run", "TestExternalIPs|TestRunBudgetsJobs|TestTick",
		"./shared/postgres", "./functions/run-budgets"))
}

// contains checks that a file exists and has a text.
func contains(t *testing.T, path, text string) {
	t.Helper()
	if text == "" {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
		return
	}
	if found, err := os.ReadFile(path); err != nil || !strings.Contains(string(found), text) {
		t.Errorf("%s has no %q: %v", path, text, err)
	}
}

// TestSingular is how the name of one is made of the name of many.
func TestSingular(t *testing.T) {
	t.Parallel()
	for many, one := range map[string]string{
		"leases": "lease", "policies": "policy", "ips": "ip", "boxes": "box", "classes": "class",
		"status": "status", "quota": "quota",
	} {
		if got := singular(many); got != one {
			t.Errorf("%s: got %s, want %s", many, got, one)
		}
	}
}

// state is every file and folder, and what is in it.
func state(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			found[path] = ""
			return err
		}
		text, err := os.ReadFile(path)
		found[path] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestRejectedArguments: the error is one line that says what is right, and nothing is written.
func TestRejectedArguments(t *testing.T) {
	checkout(t)
	before := state(t)
	for want, args := range map[string][]string{
		"NAME and KIND are needed: make new":      {"", ""},
		"NAME and KIND are needed":                {"leases", ""},
		`NAME is "Leases": it must be lower-case`: {"Leases", "http"},
		`NAME is "../x": it must be lower-case`:   {"../x", "http"},
		`NAME is "a--b": it must be lower-case`:   {"a--b", "http"},
		`NAME is "9s": it must be lower-case`:     {"9s", "http"},
		"of 40 characters at most":                {strings.Repeat("a", 41), "http"},
		`KIND is "cron": it must be http (`:       {"leases", "cron"},
		"func is reserved":                        {"func", "http"},
		"type is reserved":                        {"types", "http"},
		"testdata is reserved":                    {"test-data", "http"},
		"functions/servers exists":                {"servers", "http"},
		"knative/services/gateway.yaml exists":    {"gateway", "http"},
		"knative/services/common.yaml exists":     {"common", "event"},
		"shared/domain/instance.go exists":        {"instances", "http"},
		"action_rules.go declares Snapshot":       {"snapshots", "http"},
		`openapi.yaml has "- name: process"`:      {"process", "http"},
	} {
		err := run(io.Discard, args)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v: got %v, want %q", args, err, want)
		}
	}
	for path, line := range map[string]string{ // a list that has changed
		"functions/main.go": ".Function,", "cmd/cloudfn/main.go": "callbacks.Command(a)",
	} {
		text := before[path]
		if err := os.WriteFile(path, []byte(strings.ReplaceAll(text, line, "#")), 0o600); err != nil {
			t.Fatal(err)
		}
		changed := state(t)
		if err := run(io.Discard, []string{"budgets", "http"}); err == nil || !strings.HasPrefix(err.Error(), path+": ") {
			t.Errorf("without %q: got %v", line, err)
		}
		same(t, changed)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	same(t, before)
}

// TestWhatIsLeft: the tests that the printed list names exist.
func TestWhatIsLeft(t *testing.T) {
	t.Parallel()
	var tests strings.Builder
	for _, folder := range []string{"knative", "test/contract"} {
		paths, err := filepath.Glob(filepath.Join(testkit.Root(), folder, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			tests.Write(text)
		}
	}
	for _, kind := range []string{"http", "event"} {
		var out bytes.Buffer
		if err := (function{Kind: kind}).render(&out, "left.txt"); err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(`\bTest[A-Z]\w+`).FindAllString(out.String(), -1)
		for _, name := range found {
			if !strings.Contains(tests.String(), "\nfunc "+name+"(") {
				t.Errorf("%s: unknown test %s", kind, name)
			}
		}
		if len(found) < 4 {
			t.Errorf("%s: it names only %v", kind, found)
		}
	}
}

// same checks that the files are these.
func same(t *testing.T, want map[string]string) {
	t.Helper()
	got := state(t)
	for path := range got {
		if text, was := want[path]; !was || text != got[path] {
			t.Errorf("%s was written", path)
		}
	}
	for path := range want {
		if _, is := got[path]; !is {
			t.Errorf("%s is missing", path)
		}
	}
}

// TestAllOrNothing: when one file cannot be written, the files written before it are restored or removed.
func TestAllOrNothing(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("old", []byte("before"), 0o600); err != nil {
		t.Fatal(err)
	}
	was := state(t)
	good := []change{
		{path: "folder/new", after: []byte("x")},
		{path: "folder/newer", after: []byte("x")},
		{path: "single", after: []byte("x")},
		{path: "old", before: []byte("before"), after: []byte("after")},
	}
	for _, bad := range []string{"old/under-a-file", "no/such/folder"} {
		if err := write(append(slices.Clone(good), change{path: bad, after: []byte("x")})); err == nil {
			t.Errorf("%s was written", bad)
		}
		same(t, was)
	}
	if err := write(good); err != nil {
		t.Fatal(err)
	}
	if got := state(t); got["folder/newer"] != "x" || got["old"] != "after" {
		t.Errorf("there is %v", got)
	}
}
