package main

import (
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// users is the folder of the packages that name types of the target.
const users = "cmd/cloudfn"

// prune drops from a generated file what no file of the users names, directly or by what it names.
func prune(generated string) error {
	text, err := os.ReadFile(generated) //nolint:gosec // a tool of developers
	if err != nil {
		return err
	}
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, generated, text, parser.ParseComments)
	if err != nil {
		return err
	}
	declared, kept := declarations(file), map[ast.Node]bool{}
	var keep func(name string)
	keep = func(name string) {
		if d := declared[name]; d != nil && !kept[d] {
			kept[d] = true
			eachName(d, keep)
		}
	}
	use := func(name string) {
		if _, isOther := declared[name].(*ast.ImportSpec); !isOther { // other files import for themselves
			keep(name)
		}
	}
	if err := eachUse(use); err != nil {
		return err
	}
	var rest []byte
	at := file.FileStart
	cut := func(node ast.Node, from token.Pos) {
		if !kept[node] {
			rest = append(rest, text[at-file.FileStart:from-file.FileStart]...)
			at = node.End()
		}
	}
	for _, d := range file.Decls {
		if d, ok := d.(*ast.GenDecl); ok && d.Tok == token.IMPORT {
			for _, spec := range d.Specs {
				cut(spec, spec.Pos())
			}
		} else if ok {
			cut(d, d.Doc.Pos())
		}
	}
	if rest, err = format.Source(append(rest, text[at-file.FileStart:]...)); err != nil {
		return err
	}
	return os.WriteFile(generated, rest, 0o600) //nolint:gosec // the path of the generated file, from main
}

// declarations are what a file declares, by its names: imports one by one, constants with those of their type.
func declarations(file *ast.File) map[string]ast.Node {
	all := map[string]ast.Node{}
	for _, d := range file.Decls {
		d, ok := d.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, spec := range d.Specs {
			switch spec := spec.(type) {
			case *ast.ImportSpec:
				all[strings.Trim(path.Base(spec.Path.Value), `"`)] = spec
			case *ast.TypeSpec:
				all[spec.Name.Name] = d
			case *ast.ValueSpec:
				for _, name := range spec.Names {
					all[name.Name] = d
				}
			}
		}
	}
	return all
}

// eachUse visits what the users name of the target's package: outside it by its name.
func eachUse(visit func(name string)) error {
	home := path.Base(path.Dir(target))
	return filepath.WalkDir(users, func(name string, _ fs.DirEntry, err error) error {
		if err != nil || path.Ext(name) != ".go" || name == target {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		switch {
		case err != nil:
			return err
		case file.Name.Name == home:
			eachName(file, visit)
			return nil
		}
		ast.Inspect(file, func(node ast.Node) bool {
			if selector, ok := node.(*ast.SelectorExpr); ok {
				if from, ok := selector.X.(*ast.Ident); ok && from.Name == home {
					visit(selector.Sel.Name)
				}
			}
			return true
		})
		return nil
	})
}

// eachName visits the names in a node, but those of fields and of other packages.
func eachName(node ast.Node, visit func(name string)) {
	ast.Inspect(node, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.Field:
			eachName(node.Type, visit)
			return false
		case *ast.SelectorExpr:
			eachName(node.X, visit)
			return false
		case *ast.Ident:
			visit(node.Name)
		}
		return true
	})
}
