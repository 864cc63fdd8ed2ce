package apperr

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// riddles are phrases that say neither what was given nor what would be right.
var riddles = regexp.MustCompile(
	`that there (is|are)\b|\b(is|are) none\b|\bis no [a-z]+ (of|that|there)\b|` +
		`\bone of (the kinds|those|the allowed values)\b|` +
		`\bis for none\b|\bis not one of\b`,
)

// TestErrorsNameTheValue: no text of an error that the program makes has a riddle in it, and "there is no" is followed
// by what was looked for, or what to do. It reads the sources, because most texts are seen by nobody before something
// is wrong.
func TestErrorsNameTheValue(t *testing.T) {
	t.Parallel()
	texts := 0
	for _, dir := range []string{"shared", "functions", "cmd"} {
		err := filepath.WalkDir(filepath.Join("..", "..", dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") ||
				strings.Contains(path, "testkit") {
				return err
			}
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, path, nil, 0)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok || !makesError(call) {
					return true
				}
				for _, text := range literals(call) {
					texts++
					if said := riddles.FindString(text); said != "" {
						t.Errorf("%s: %q says %q: name the value and what is allowed", set.Position(call.Pos()), text,
							said)
					}
					if strings.Contains(text, "there is no ") && !strings.ContainsAny(text, "%:") {
						t.Errorf("%s: %q does not name what was looked for", set.Position(call.Pos()), text)
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if texts < 300 {
		t.Errorf("only %d texts were found", texts)
	}
}

// makesError says whether a call makes an error that somebody reads: of this package, or of the CLI.
func makesError(call *ast.CallExpr) bool {
	switch f := call.Fun.(type) {
	case *ast.SelectorExpr:
		of, ok := f.X.(*ast.Ident)
		return ok && (of.Name == "apperr" || of.Name == "fmt" && f.Sel.Name == "Errorf" || of.Name == "errors" &&
			f.Sel.Name == "New")
	case *ast.Ident:
		return f.Name == "wrong" || f.Name == "refuse"
	}
	return false
}

// literals are the texts among a call's arguments, also within calls such as fmt.Sprintf.
func literals(call *ast.CallExpr) (texts []string) {
	for _, arg := range call.Args {
		ast.Inspect(arg, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				text, _ := strconv.Unquote(lit.Value)
				texts = append(texts, text)
			}
			return true
		})
	}
	return texts
}

func TestUnknownAndMalformed(t *testing.T) {
	t.Parallel()
	unknown, malformed := Unknown("kind", "kind", "x\n", "a", "b"),
		Malformed("marker", "a UUID", strings.Repeat("é", 100))
	if unknown.Message != `kind: unknown kind "x\n"` || len(unknown.Fields) != 1 ||
		len(unknown.Fields[0].Allowed) != 2 {
		t.Errorf("got %+v", unknown)
	}
	if want := `marker: must be a UUID, not "` + strings.Repeat("é", 64) + `"`; malformed.Message != want {
		t.Errorf("got %s", malformed.Message)
	}
}
