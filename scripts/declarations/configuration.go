package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/cloudfn/cloudfn/shared/run"
)

// configuration is the table of environment variables. What each means is the comment of its field.
func configuration(made files, d run.Description) error {
	meanings, err := comments("shared/*/*.go", "functions/*/*.go")
	if err != nil {
		return err
	}
	var out strings.Builder
	out.WriteString("| variable | default | values | read by | meaning |\n|---|---|---|---|---|\n")
	for _, v := range d.Variables {
		byDefault, values, readers := "", "", "all"
		if v.Default != "" {
			byDefault = " `" + v.Default + "`"
		}
		if v.Values != "" {
			values = " " + v.Values
		}
		if v.ReadBy != nil {
			readers = strings.Join(v.ReadBy, ", ")
		}
		if meanings[v.Name] == "" {
			return fmt.Errorf("%s: the field of the configuration has no comment", v.Name)
		}
		fmt.Fprintf(&out, "| `%s` |%s |%s | %s | %s |\n", v.Name, byDefault, values, readers, meanings[v.Name])
	}
	return replace(made, "docs/configuration.md", "variables", out.String())
}

// comments are those of struct fields with a tag env, by the variable; of two fields that read one, the first.
func comments(patterns ...string) (map[string]string, error) {
	found := map[string]string{}
	for _, pattern := range patterns {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		slices.Sort(paths)
		for _, path := range paths {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
			if err != nil {
				return nil, err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if field, ok := n.(*ast.Field); ok && field.Tag != nil && field.Doc != nil {
					add(found, field)
				}
				return true
			})
		}
	}
	return found, nil
}

func add(found map[string]string, field *ast.Field) {
	tag := reflect.StructTag(strings.Trim(field.Tag.Value, "`")).Get("env")
	name, _, _ := strings.Cut(tag, ",")
	if name == "" || found[name] != "" {
		return
	}
	text := strings.Join(strings.Fields(field.Doc.Text()), " ")
	found[name] = strings.ReplaceAll(text, "|", `\|`)
}
