package contract_test

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

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
