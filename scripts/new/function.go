package main

import (
	"embed"
	"errors"
	"fmt"
	"go/token"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/template"
)

//go:embed http event
var files embed.FS

// function is what the templates know of the one to make. Of floating-ips they are the words at the right.
type function struct {
	Name, Kind string
	Package    string // floatingips
	Words      string // floating ips
	Field      string // floating_ips
	Type       string // FloatingIps
	Operation  string // listFloatingIps; of an event function that is run-leases runLeases
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
		return function{}, fmt.Errorf("NAME is %q: it must be lower-case words with dashes in between, such as leases or run-leases, of %d characters at most", name, maxName)
	}
	if kind != "http" && kind != "event" {
		return function{}, fmt.Errorf("KIND is %q: it must be http (a noun that serves, such as leases) or event (a verb that is woken, such as run-leases)", kind)
	}
	f := function{
		Name: name, Kind: kind, Package: strings.ReplaceAll(name, "-", ""),
		Words: strings.ReplaceAll(name, "-", " "), Field: strings.ReplaceAll(name, "-", "_"),
	}
	for word := range strings.SplitSeq(name, "-") {
		f.Type += strings.ToUpper(word[:1]) + word[1:]
	}
	f.Operation = strings.ToLower(f.Type[:1]) + f.Type[1:]
	if kind == "http" {
		f.Operation = "list" + f.Type
	}
	if err := f.goes(); err != nil {
		return function{}, err
	}
	return f, f.free()
}

// goes says whether Go takes the name.
func (f function) goes() error {
	if token.IsKeyword(f.Package) || slices.Contains(reserved, f.Package) {
		return fmt.Errorf("NAME is %q: it must be a name for a Go package, and Go takes %s for something else", f.Name, f.Package)
	}
	return nil
}

// free says whether nothing has the name yet: another function, a Service, a path or a tag of the API.
func (f function) free() error {
	for _, path := range []string{"functions/" + f.Name, f.service()} {
		if _, err := os.Stat(path); err == nil {
			return fmt.Errorf("NAME is %q: it must be one that is free, and %s is there", f.Name, path)
		}
	}
	api, err := os.ReadFile("functions/openapi.yaml")
	if err != nil {
		return err
	}
	for _, text := range []string{
		"\n  /v1/" + f.Name + ":\n", "\n  /v1/" + f.Name + "/", "\n  - name: " + f.Name + "\n", "\n      operationId: " + f.Operation + "\n",
		"\n    " + f.Type + "Item:\n", "\n    " + f.Type + "Page:\n",
	} {
		if strings.Contains(string(api), text) {
			return fmt.Errorf("NAME is %q: it must be one that is free, and openapi.yaml has %q", f.Name, strings.TrimSpace(text))
		}
	}
	return nil
}

const apiFile = "functions/openapi.rest.yaml"

// service is where its Knative Service is generated.
func (f function) service() string { return "knative/services/" + f.Name + ".yaml" }

// render fills in a template of the function's kind.
func (f function) render(out io.Writer, name string) error {
	made, err := template.ParseFS(files, f.Kind+"/"+name+".tmpl")
	if err != nil {
		return err
	}
	return made.Execute(out, f)
}

// text is a template, filled in.
func (f function) text(name string) (string, error) {
	var out strings.Builder
	err := f.render(&out, name)
	return out.String(), err
}

// made are the new files, by their templates.
func (f function) made() map[string]string {
	paths := map[string]string{}
	for _, name := range []string{"README.md", "function.go", "handler.go", "service.go", "handler_test.go"} {
		paths[name] = filepath.Join("functions", f.Name, name)
	}
	return paths
}
