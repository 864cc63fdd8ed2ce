package leases

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// ownClock lists the functions that read their process's clock, each with the reason why that decides nothing about a
// lease: it measures how long something takes in this process, for which Go uses a monotonic clock.
var ownClock = map[string]string{
	"shared/leases/engine.go Run":          "when a pass has begun in this process",
	"shared/leases/engine.go time":         "how long a pass takes in this process",
	"functions/run-leases/pool.go tryPool": "how long ago this process has surveyed the pool",
	"shared/leases/inventory.go get":       "how old a list is that this process has read",
}

// TestLeasesUseTheDatabaseClock: a replica whose clock is wrong decides as the others do, since none reads its own.
func TestLeasesUseTheDatabaseClock(t *testing.T) {
	t.Parallel()
	unused := map[string]bool{}
	for name := range ownClock {
		unused[name] = true
	}
	parsed := 0
	for _, pattern := range []string{
		"functions/leases/*.go", "functions/run-leases/*.go", "shared/leases/*.go", "shared/delegation/*.go",
		"shared/postgres/lease*.go", "shared/postgres/reservation*.go", "shared/postgres/allocation*.go",
		"shared/postgres/node*.go", "shared/postgres/isolation*.go", "shared/domain/lease*.go",
		"shared/domain/node*.go", "shared/domain/period*.go",
	} {
		files, err := filepath.Glob(filepath.Join(testkit.Root(), pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: no files, %v", pattern, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			parsed++
			path, _ := filepath.Rel(testkit.Root(), file)
			for _, function := range readersOfClock(t, file) {
				if name := path + " " + function; ownClock[name] == "" {
					t.Errorf("%s reads the process's clock: leases go by the database's", name)
				} else {
					delete(unused, name)
				}
			}
		}
	}
	if len(unused) > 0 || parsed < 20 {
		t.Errorf("of %d files these do not read the clock any more: %v", parsed, unused)
	}
}

// readersOfClock lists the functions of a file that call time.Now, time.Since or time.Until.
func readersOfClock(t *testing.T, file string) (found []string) {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, declared := range parsed.Decls {
		name := "a declaration"
		if f, ok := declared.(*ast.FuncDecl); ok {
			name = f.Name.Name
		}
		ast.Inspect(declared, func(n ast.Node) bool {
			selector, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			from, ok := selector.X.(*ast.Ident)
			if ok && from.Name == "time" && slices.Contains([]string{"Now", "Since", "Until"}, selector.Sel.Name) {
				found = append(found, name)
			}
			return true
		})
	}
	return found
}
