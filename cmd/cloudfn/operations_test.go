package main

import (
	"cmp"
	"context"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"sigs.k8s.io/yaml"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// operation is one of the OpenAPI file.
type operation struct {
	id, method, template string
	path                 *regexp.Regexp
}

// operations are those of the OpenAPI file that commands call, those with the fewest parameters first.
func operations(t *testing.T) (all []operation) {
	t.Helper()
	var document struct {
		Paths map[string]map[string]any `json:"paths"`
	}
	var without map[string]string
	for file, into := range map[string]any{
		filepath.Join(testkit.Root(), "functions", "openapi.yaml"): &document, filepath.Join("testdata", "not-commands.yaml"): &without,
	} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.Unmarshal(text, into); err != nil {
			t.Fatal(err)
		}
	}
	parameter := regexp.MustCompile(`\\\{[^}]*\\\}`)
	for template, methods := range document.Paths {
		path := regexp.MustCompile("^" + parameter.ReplaceAllString(regexp.QuoteMeta(template), "[^/]+") + "$")
		for method, o := range methods {
			o, ok := o.(map[string]any)
			if !ok {
				continue
			}
			if id, _ := o["operationId"].(string); id != "" && without[id] == "" {
				all = append(all, operation{id, strings.ToUpper(method), template, path})
			}
		}
	}
	slices.SortFunc(all, func(a, b operation) int {
		return cmp.Or(cmp.Compare(strings.Count(a.template, "{"), strings.Count(b.template, "{")), cmp.Compare(a.id, b.id))
	})
	return all
}

// allCalled sees in the daemon's request log that every operation was called by a command, and succeeded once at least.
func (d daemon) allCalled(t *testing.T) {
	t.Helper()
	left := map[string]bool{}
	all := operations(t)
	for _, o := range all {
		left[o.id] = o.template != "/v1/status" // which says that Postgres is away when no row can be written; basics.txtar calls it
	}
	maps.DeleteFunc(left, func(_ string, logged bool) bool { return !logged })
	rows, _ := testkit.Pool(t, d.database).Query(context.Background(), "select distinct method, path from requests where status < 400")
	var method, path string
	if _, err := pgx.ForEachRow(rows, []any{&method, &path}, func() error {
		if i := slices.IndexFunc(all, func(o operation) bool { return o.method == method && o.path.MatchString(path) }); i >= 0 {
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
