package main

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// checkout is a copy of all that git knows of this checkout, or would, in a folder of its own, which is where the test goes on.
func checkout(t *testing.T) {
	t.Helper()
	root, dir := testkit.Root(), t.TempDir()
	for path := range strings.SplitSeq(tracked(t, root), "\x00") {
		text, err := os.ReadFile(filepath.Join(root, path))
		if path == "" || errors.Is(err, fs.ErrNotExist) { // it was deleted, and that is not committed
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, path), text, info.Mode()); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
}

func tracked(t *testing.T, root string) string {
	t.Helper()
	cmd := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir, cmd.Stderr = root, os.Stderr
	list, err := cmd.Output()
	if err != nil {
		t.Fatalf("git does not say which files are the project's: %v", err)
	}
	return string(list)
}

// command runs one that must work, and gives what it printed.
func command(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// TestNew begins a function of each kind in a copy of this checkout: each compiles, is as gofmt has it, and passes its tests.
func TestNew(t *testing.T) {
	database := testkit.EmptyDatabase(t) // the copy's tests make theirs in the same cluster
	checkout(t)
	for _, args := range [][]string{{"floating-ips", "http"}, {"run-leases", "event"}} {
		var out bytes.Buffer
		if err := run(&out, args); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), "made    functions/"+args[0]+"/function.go\n") || !strings.Contains(out.String(), "What is left") {
			t.Errorf("it printed %s", &out)
		}
		if err := run(io.Discard, args); err == nil || !strings.Contains(err.Error(), "functions/"+args[0]+" is there") {
			t.Errorf("the second time: %v", err)
		}
	}
	if unformatted := command(t, "gofmt", "-l", "functions", "test"); unformatted != "" {
		t.Errorf("not as gofmt has it: %s", unformatted)
	}
	inPlace(t)
	command(t, "go", "run", "./scripts/declarations")
	for _, path := range []string{"knative/services/floating-ips.yaml", "knative/sources/run-leases.yaml"} {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
	packages := []string{"./functions/floating-ips/", "./functions/run-leases/"}
	command(t, append([]string{"go", "vet", "./functions"}, packages...)...)
	t.Setenv("TEST_DATABASE_URL", database)
	t.Log(command(t, append([]string{"go", "test"}, packages...)...))
}

// inPlace sees the new lines stand where they belong: between these two.
func inPlace(t *testing.T) {
	t.Helper()
	for path, lines := range map[string]string{
		"functions/main.go":                      "functions/deliver-events\"\n\tfloatingips \"github.com/cloudfn/cloudfn/functions/floating-ips\"\n",
		"functions/openapi.rest.yaml":            "        '503': { $ref: '#/components/responses/EventNotDone' }\n\nwebhooks:\n",
		"test/contract/examples_done_test.go":    "\"listFloatingIps 500\": ",
		"functions/floating-ips/function.go":     "package floatingips\n",
		"cmd/cloudfn/testdata/not-commands.yaml": "runLeases: an event function\n",
	} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), lines) {
			t.Errorf("%s has no %q", path, lines)
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

// TestRefusals write nothing, and say in one line what is allowed.
func TestRefusals(t *testing.T) {
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
		"Go takes func for something else":        {"func", "http"},
		"Go takes testdata for something else":    {"test-data", "http"},
		"functions/servers is there":              {"servers", "http"},
		"knative/services/gateway.yaml is there":  {"gateway", "http"},
		"knative/services/common.yaml is there":   {"common", "event"},
		`has "/v1/requests:"`:                     {"requests", "http"},
		`has "- name: process"`:                   {"process", "http"},
		`has "operationId: redeliver"`:            {"redeliver", "event"},
	} {
		err := run(io.Discard, args)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v: got %v, want %q", args, err, want)
		}
	}
	for path, line := range map[string]string{ // a list that is not as it was
		"test/contract/examples_done_test.go": "var never = ", "functions/openapi.rest.yaml": "\nwebhooks:\n",
		"functions/main.go": ".Function,",
	} {
		text := before[path]
		if err := os.WriteFile(path, []byte(strings.ReplaceAll(text, line, "#")), 0o600); err != nil {
			t.Fatal(err)
		}
		changed := state(t)
		args := []string{"leases", "http"}
		if strings.Contains(path, "openapi") {
			args = []string{"run-leases", "event"}
		}
		if err := run(io.Discard, args); err == nil || !strings.HasPrefix(err.Error(), path+": ") {
			t.Errorf("without %q: got %v", line, err)
		}
		same(t, changed)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	same(t, before)
}

// TestWhatIsLeft names tests that there are, so that nobody looks for one that was renamed.
func TestWhatIsLeft(t *testing.T) {
	checkout(t)
	var tests strings.Builder
	for path, text := range state(t) {
		if strings.HasSuffix(path, "_test.go") && !strings.HasPrefix(path, "scripts/new/") {
			tests.WriteString(text)
		}
	}
	for _, args := range [][]string{{"leases", "http"}, {"run-leases", "event"}} {
		var out bytes.Buffer
		if err := run(&out, args); err != nil {
			t.Fatal(err)
		}
		named := regexp.MustCompile(`\bTest\w+`).FindAllString(out.String(), -1)
		for _, name := range named {
			if !strings.Contains(tests.String(), "\nfunc "+name+"(") {
				t.Errorf("%s: there is no %s", args[1], name)
			}
		}
		if len(named) < 7 {
			t.Errorf("%s: it names only %v", args[1], named)
		}
	}
}

// same sees that nothing was written.
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
			t.Errorf("%s is gone", path)
		}
	}
}

// TestAllOrNothing: what cannot be written takes back what was.
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
