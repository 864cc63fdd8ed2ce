package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// operation is one of the OpenAPI file.
type operation struct {
	id, method, template string
	path                 *regexp.Regexp
}

// operations are those of the OpenAPI file but for event functions', those with the fewest parameters first.
func operations(t *testing.T) (all []operation) {
	t.Helper()
	var document struct {
		Paths map[string]map[string]any `json:"paths"`
	}
	read(t, &document, testkit.Root(), "functions", "openapi.yaml")
	parameter := regexp.MustCompile(`\\\{[^}]*\\\}`)
	for template, methods := range document.Paths {
		if strings.HasPrefix(template, "/events/") {
			continue
		}
		path := regexp.MustCompile("^" + parameter.ReplaceAllString(regexp.QuoteMeta(template), "[^/]+") + "$")
		for method, o := range methods {
			o, ok := o.(map[string]any)
			if !ok {
				continue
			}
			if id, _ := o["operationId"].(string); id != "" {
				all = append(all, operation{id, strings.ToUpper(method), template, path})
			}
		}
	}
	slices.SortFunc(all, func(a, b operation) int {
		return cmp.Or(cmp.Compare(strings.Count(a.template, "{"), strings.Count(b.template, "{")), cmp.Compare(a.id,
			b.id))
	})
	return all
}

// withoutCommand are the operations that no command calls, each with the reason.
func withoutCommand(t *testing.T) (reasons map[string]string) {
	t.Helper()
	read(t, &reasons, "testdata", "not-commands.yaml")
	return reasons
}

func read(t *testing.T, into any, path ...string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, into); err != nil {
		t.Fatal(err)
	}
}

// root is the program's command, with an empty environment.
func root() *cobra.Command {
	a := &cli.App{Env: func(string) (string, bool) { return "", false }, Now: time.Now}
	return a.Root("cloudfn", commands)
}

// each calls do with a command and all those below it.
func each(cmd *cobra.Command, do func(*cobra.Command)) {
	do(cmd)
	for _, sub := range cmd.Commands() {
		each(sub, do)
	}
}

// TestEveryOperationHasACommand: a new route comes with its command, or with a reason in testdata/not-commands.yaml
// why not.
func TestEveryOperationHasACommand(t *testing.T) {
	t.Parallel()
	called, without, known := map[string]bool{}, withoutCommand(t), map[string]bool{}
	each(root(), func(cmd *cobra.Command) {
		for _, id := range calls(cmd) {
			called[id] = true
		}
	})
	for _, o := range operations(t) {
		known[o.id] = true
		if hasReason := without[o.id] != ""; called[o.id] == hasReason {
			t.Errorf("operation %s: a command calls it: %v, a reason says why none does: %v", o.id, called[o.id],
				hasReason)
		}
	}
	for id := range called {
		if !known[id] {
			t.Errorf("a command calls %s, which is no operation", id)
		}
	}
	for id := range without {
		if !known[id] {
			t.Errorf("not-commands.yaml has %s, which is no operation", id)
		}
	}
}

var update = flag.Bool("update", false, "write the commands of the API reference")

// TestReferenceCommandsUpToDate: the API reference shows the usages of an operation's commands. With -update, as in
// make generate, it writes them.
func TestReferenceCommandsUpToDate(t *testing.T) {
	t.Parallel()
	all, usages := operations(t), map[string][]string{}
	methods := map[string]string{}
	for _, o := range all {
		methods[o.id] = o.method
	}
	for _, o := range all {
		for _, cmd := range commandsOf(o, methods) {
			usages[o.id] = append(usages[o.id], strings.TrimSuffix(cmd.UseLine(), " [flags]"))
		}
	}
	text := bytes.NewBufferString("// Made from cmd/cloudfn by `make generate`: the commands of each operation.\n" +
		"export default ")
	list := json.NewEncoder(text)
	list.SetEscapeHTML(false)
	list.SetIndent("", "  ")
	if err := list.Encode(usages); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(testkit.Root(), "shared", "run", "docs", "commands.mjs")
	if *update {
		if err := os.WriteFile(path, text.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, text.Bytes()) {
		t.Errorf("%s is stale (%v): run make generate", path, err)
	}
}

// commandsOf returns the commands for an operation. Many commands also read something, such as the server that a name
// refers to. So an operation that reads has those that call the fewest operations, and none that writes if another one
// only reads.
func commandsOf(o operation, methods map[string]string) (found []*cobra.Command) {
	writes := func(cmd *cobra.Command) bool {
		return slices.ContainsFunc(calls(cmd), func(id string) bool { return methods[id] != http.MethodGet })
	}
	each(root(), func(cmd *cobra.Command) {
		if slices.Contains(calls(cmd), o.id) && cmd.Name() != "ssh" { // ssh reads a server only to connect to it
			found = append(found, cmd)
		}
	})
	slices.SortStableFunc(found, func(a, b *cobra.Command) int { return cmp.Compare(len(calls(a)), len(calls(b))) })
	if o.method != http.MethodGet || len(found) == 0 {
		return found
	}
	if reads := slices.DeleteFunc(slices.Clone(found), writes); len(reads) > 0 {
		found = reads
	}
	fewest := len(calls(found[0]))
	return slices.DeleteFunc(found, func(cmd *cobra.Command) bool { return len(calls(cmd)) > fewest })
}

// calls returns the operations that a command calls.
func calls(cmd *cobra.Command) []string {
	return strings.FieldsFunc(cmd.Annotations["operations"], func(r rune) bool { return r == ',' })
}

// TestEveryCommandHasHelp, without a full stop.
func TestEveryCommandHasHelp(t *testing.T) {
	t.Parallel()
	each(root(), func(cmd *cobra.Command) {
		if cmd.Short == "" || strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("%s: %q", cmd.CommandPath(), cmd.Short)
		}
	})
}

// allCalled checks in the daemon's request log that every operation was called by a command, and succeeded once at
// least.
func (d daemon) allCalled(t *testing.T) {
	t.Helper()
	left := map[string]bool{}
	without := withoutCommand(t)
	without["openServerConsole"] = "the sandbox's Nova has no remote consoles: TestConsole has a fake one"
	all := slices.DeleteFunc(operations(t), func(o operation) bool { return without[o.id] != "" })
	for _, o := range all {
		// The log lacks requests for the status, which must answer without Postgres. basics.txtar calls it.
		left[o.id] = o.template != "/v1/status"
	}
	maps.DeleteFunc(left, func(_ string, logged bool) bool { return !logged })
	rows, _ := testkit.Pool(t, d.database).Query(context.Background(),
		"select distinct method, path from requests where status < 400")
	var method, path string
	if _, err := pgx.ForEachRow(rows, []any{&method, &path}, func() error {
		if i := slices.IndexFunc(all, func(o operation) bool {
			return o.method == method &&
				o.path.MatchString(path)
		}); i >= 0 {
			delete(left, all[i].id)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if len(left) > 0 {
		t.Errorf("no script calls %s with success", strings.Join(slices.Sorted(maps.Keys(left)), ", "))
	}
}
