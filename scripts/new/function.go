package main

import (
	"cmp"
	"embed"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/template"
)

//go:embed http event
var files embed.FS

// function is what the templates use. The comments show the values for floating-ips.
type function struct {
	Name, Kind string
	Package    string // floatingips
	Words      string // floating IPs
	Title      string // Floating IPs
	Word       string // floating IP
	Field      string // floating_ips, also the table
	OneField   string // floating_ip
	Types      string // FloatingIPs
	Type       string // FloatingIP; for run-leases, which is a verb, RunLeases
	Var        string // floatingIP
	Receiver   string // f
	Arg        string // FLOATING_IP
	File       string // floatingip: the file in shared/domain and shared/postgres
	Event      string // cloudfn.floating_ip.state.v1
	Migration  string // 009_floating_ips.sql
}

var nameForm = regexp.MustCompile(`^[a-z][a-z0-9]*(-[a-z0-9]+)*$`)

// maxName leaves room for what Kubernetes puts behind a name, of 63 characters in all.
const maxName = 40

// reserved are the folders and packages that Go's tools take for something else.
var reserved = []string{"documentation", "init", "internal", "main", "testdata", "vendor"}

func newFunction(args []string) (function, error) {
	if len(args) != 2 || args[0] == "" || args[1] == "" {
		return function{}, errors.New("NAME and KIND are needed: make new NAME=leases KIND=http")
	}
	name, kind := args[0], args[1]
	if !nameForm.MatchString(name) || len(name) > maxName {
		return function{}, fmt.Errorf("NAME is %q: it must be lower-case words with dashes in between, "+
			"such as leases or run-leases, of %d characters at most", name, maxName)
	}
	if kind != "http" && kind != "event" {
		return function{}, fmt.Errorf("KIND is %q: it must be http (a noun that serves, such as leases) or event "+
			"(a verb that is woken, such as run-leases)", kind)
	}
	f := function{Name: name, Kind: kind}
	f.Package, f.Field = strings.ReplaceAll(name, "-", ""), strings.ReplaceAll(name, "-", "_")
	words := strings.Split(name, "-")
	f.Words, f.Types = phrase(words), camel(words)
	if kind == "http" {
		words[len(words)-1] = singular(words[len(words)-1])
	}
	f.Word, f.Type, f.OneField, f.File = phrase(words), camel(words), strings.Join(words, "_"), strings.Join(words, "")
	f.Arg, f.Event, f.Receiver = strings.ToUpper(f.OneField), "cloudfn."+f.OneField+".state.v1", name[:1]
	f.Var = words[0] + camel(words[1:])
	f.Title = strings.ToUpper(f.Words[:1]) + f.Words[1:]
	var err error
	if f.Migration, err = nextMigration(f.Field); err != nil {
		return function{}, err
	}
	if err := f.goes(); err != nil {
		return function{}, err
	}
	return f, f.free()
}

// initialisms are written in capitals, as Go and golangci-lint have them.
var initialisms = map[string]string{
	"api": "API", "cpu": "CPU", "dns": "DNS", "id": "ID", "ip": "IP", "ips": "IPs",
	"tls": "TLS", "url": "URL", "urls": "URLs", "vm": "VM", "vms": "VMs",
}

func phrase(words []string) string {
	out := make([]string, len(words))
	for i, word := range words {
		out[i] = cmp.Or(initialisms[word], word)
	}
	return strings.Join(out, " ")
}

func camel(words []string) string {
	out := make([]string, len(words))
	for i, word := range words {
		out[i] = cmp.Or(initialisms[word], strings.ToUpper(word[:1])+word[1:])
	}
	return strings.Join(out, "")
}

// singular is one of what a noun in the plural means. A noun without a plural stays.
func singular(word string) string {
	for _, end := range [][2]string{
		{"ies", "y"},
		{"sses", "ss"},
		{"xes", "x"},
		{"ches", "ch"},
		{"shes", "sh"},
		{"ss", "ss"},
		{"us", "us"},
		{"s", ""},
	} {
		if stem, ok := strings.CutSuffix(word, end[0]); ok && stem != "" {
			return stem + end[1]
		}
	}
	return word
}

// nextMigration is the file of the next migration.
func nextMigration(name string) (string, error) {
	found, err := filepath.Glob("shared/postgres/migrations/*.sql")
	if err != nil || len(found) == 0 {
		return "", fmt.Errorf("shared/postgres/migrations has no migration: %w", cmp.Or(err, os.ErrNotExist))
	}
	var last int
	if _, err := fmt.Sscanf(filepath.Base(slices.Max(found)), "%d_", &last); err != nil {
		return "", err
	}
	return fmt.Sprintf("%03d_%s.sql", last+1, name), nil
}

// goes fails when Go does not accept the names.
func (f function) goes() error {
	for _, word := range []string{f.Package, f.Var} {
		if token.IsKeyword(word) || slices.Contains(reserved, word) {
			return fmt.Errorf("NAME is %q: it must be a name for a Go package and a variable, and %s is reserved",
				f.Name, word)
		}
	}
	return nil
}

// free fails when something has one of the names already: a function, a Service, a file, a path, a tag or a schema of
// the API.
func (f function) free() error {
	paths := slices.Sorted(maps.Values(f.created()))
	for _, path := range append([]string{"functions/" + f.Name, "knative/services/" + f.Name + ".yaml"}, paths...) {
		if _, err := os.Stat(path); err == nil {
			return fmt.Errorf("NAME is %q: %s exists", f.Name, path)
		}
	}
	if err := f.undeclared(); err != nil {
		return err
	}
	api, err := os.ReadFile("functions/openapi.yaml")
	if err != nil {
		return err
	}
	for _, text := range []string{
		"  /v1/" + f.Name + ":", "  - name: " + f.Name, "    " + f.Type + ":", "    " + f.Type + "Page:",
	} {
		if strings.Contains(string(api), "\n"+text+"\n") {
			return fmt.Errorf("NAME is %q: openapi.yaml has %q", f.Name, strings.TrimSpace(text))
		}
	}
	return nil
}

// undeclared fails when a package that gets a file declares one of its names already.
func (f function) undeclared() error {
	names := []string{f.Type, f.Type + "Event", f.Types}
	if f.Kind == "event" {
		names = []string{f.Type + "Job", f.Type + "Jobs"}
	}
	paths, err := filepath.Glob("shared/[dp]o*/*.go") // domain, postgres
	if err != nil {
		return err
	}
	for _, path := range paths {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		for _, name := range declared(file) {
			if slices.Contains(names, name) {
				return fmt.Errorf("NAME is %q: %s declares %s", f.Name, path, name)
			}
		}
	}
	return nil
}

// declared are the types, constants and variables of a file.
func declared(file *ast.File) (names []string) {
	for _, d := range file.Decls {
		group, ok := d.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, spec := range group.Specs {
			switch s := spec.(type) {
			case *ast.TypeSpec:
				names = append(names, s.Name.Name)
			case *ast.ValueSpec:
				for _, n := range s.Names {
					names = append(names, n.Name)
				}
			}
		}
	}
	return names
}

// created are the new files, by their templates.
func (f function) created() map[string]string {
	folder := "functions/" + f.Name + "/"
	paths := map[string]string{
		"README.md": folder + "README.md", "function.go": folder + "function.go", "service.go": folder + "service.go",
		"handler_test.go":  folder + "handler_test.go",
		"domain.go":        "shared/domain/" + f.File + ".go",
		"postgres.go":      "shared/postgres/" + f.File + ".go",
		"postgres_test.go": "shared/postgres/" + f.File + "_test.go",
		"migration.sql":    "shared/postgres/migrations/" + f.Migration,
	}
	if f.Kind == "event" {
		paths["event.go"] = folder + "event.go"
		return paths
	}
	maps.Copy(paths, map[string]string{
		"http.go": folder + "http.go", "http.yaml": folder + "http.yaml",
		"cli.go":          "cmd/cloudfn/internal/" + f.Package + "/" + f.Package + ".go",
		"script.txtar":    "cmd/cloudfn/testdata/script/" + f.Name + ".txtar",
		"console.js":      "functions/console/static/" + f.Name + ".js",
		"example_test.go": "test/contract/examples_" + f.Field + "_test.go",
	})
	return paths
}

// render fills in a template of the function's kind.
func (f function) render(out io.Writer, name string) error {
	parsed, err := template.ParseFS(files, f.Kind+"/"+name+".tmpl")
	if err != nil {
		return err
	}
	return parsed.Execute(out, f)
}
