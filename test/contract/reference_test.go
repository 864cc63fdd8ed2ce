package contract_test

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLongReference: the reference is served whole to anyone, under a policy that allows only its own files. In a real
// Chromium it draws every operation and sends requests; its snippets are run.
func TestLongReference(t *testing.T) {
	t.Parallel()
	chromium := testkit.Chromium(t)
	project, database := testkit.BorrowProject(t), testkit.Database(t)
	app := testkit.Spawn(t, testkit.DaemonEnv(t, database))
	alone := testkit.Spawn(t, testkit.Env(t, database, map[string]string{"FUNCTION_TARGET": "stats"}))
	for path, kind := range map[string]string{
		"/v1/docs": "text/html", "/v1/docs/docs.js": "javascript", "/v1/docs/swagger-ui.css": "text/css",
		"/v1/docs/snippets.mjs": "javascript", "/v1/docs/docs.css": "text/css",
		"/v1/docs/favicon-32x32.png": "image/png",
	} {
		a := app.Do(t, "GET", path, "", "Accept-Encoding", "identity")
		policy := a.Header.Get("Content-Security-Policy")
		if a.Status != 200 || !strings.Contains(a.Header.Get("Content-Type"), kind) ||
			a.Header.Get("Content-Encoding") != "" ||
			!strings.Contains(policy, "script-src 'self'; style-src 'self'; ") || strings.Contains(policy, "unsafe") {
			t.Errorf("%s: got %d %v", path, a.Status, a.Header)
		}
	}
	if a := app.Get(t, "/v1/docs/../docs.go"); a.Status == 200 {
		t.Errorf("got %s", a.Body)
	}
	if a := app.Get(t, "/v1/docs/absent.js"); a.Status != 404 {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	account, err := json.Marshal(map[string]string{
		"user": project.Name, "password": project.Environment()["OS_PASSWORD"], "project": project.Name,
	})
	if err != nil {
		t.Fatal(err)
	}
	cache, err := exec.CommandContext(ctx, "go", "env", "GOCACHE").Output() // for a snippet in Go
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, "node", "--test", "--test-reporter=spec", "docs.test.mjs", "snippets.test.mjs")
	cmd.Dir = filepath.Join(testkit.Root(), "test", "browser")
	cmd.Env = append(os.Environ(), "NO_PROXY=*", "HOME="+t.TempDir(), "GOCACHE="+strings.TrimSpace(string(cache)),
		"CHROMIUM="+chromium, "DOCS_URL="+app.URL, "DOCS_ALONE="+alone.URL, "DOCS_TOKEN="+project.Token(t),
		"DOCS_ACCOUNT="+string(account),
		"DOCS_OPERATIONS="+strings.Join(slices.Sorted(maps.Keys(newExamples(t).operations)), ","))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestEveryCodeIsExplained in the reference's introduction.
func TestEveryCodeIsExplained(t *testing.T) {
	t.Parallel()
	doc := document(t)
	for _, code := range doc.Components.Schemas["Code"].Value.Enum {
		if row := "| `" + code.(string) + "` | "; strings.Count(doc.Info.Description, row) != 1 {
			t.Errorf("no single row %q", row)
		}
	}
}

// TestEveryRouteIsDocumented, and every documented one is served. What is served is what the functions declare.
func TestEveryRouteIsDocumented(t *testing.T) {
	t.Parallel()
	// the path itself with a slash behind it, which OpenAPI's tools take for the same
	end := regexp.MustCompile(`(\w)/\{\$\}$`)
	served := map[string]bool{}
	for _, pattern := range testkit.Describe(t).Routes {
		served[strings.TrimSuffix(end.ReplaceAllString(pattern, "$1"), "{$}")] = true
	}
	documented := map[string]bool{}
	for path, item := range document(t).Paths.Map() {
		for method := range item.Operations() {
			documented[method+" "+path] = true
		}
	}
	for _, route := range slices.Sorted(maps.Keys(served)) {
		if !documented[route] && !documentedAs(route, documented) {
			t.Errorf("%s is served, and not in openapi.yaml", route)
		}
	}
	for _, route := range slices.Sorted(maps.Keys(documented)) {
		if !served[route] && !servedBy(route, served) {
			t.Errorf("%s is in openapi.yaml, and nothing serves it", route)
		}
	}
}

// A pattern that ends in {name...}, with or without a method, takes every path that begins like it. OpenAPI has no such
// thing, so each method of it is documented with one more segment.
var rest = regexp.MustCompile(`\{[a-z]+\.\.\.\}$`)

func documentedAs(pattern string, documented map[string]bool) bool {
	if !rest.MatchString(pattern) {
		return false
	}
	for route := range documented {
		if servedBy(route, map[string]bool{pattern: true}) {
			return true
		}
	}
	return false
}

func servedBy(route string, served map[string]bool) bool {
	_, path, _ := strings.Cut(route, " ")
	for pattern := range served {
		begin := rest.ReplaceAllString(pattern, "")
		if begin != pattern && (strings.HasPrefix(route, begin) || strings.HasPrefix(path, begin)) {
			return true
		}
	}
	return false
}
