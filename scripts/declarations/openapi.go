package main

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/template"

	"go.yaml.in/yaml/v3"

	"github.com/cloudfn/cloudfn/shared/run"
)

const (
	base   = "functions/openapi.base.yaml"
	target = "functions/openapi.yaml"
	header = "# Written by scripts/declarations (make generate) from the functions' function.go, " +
		"http.go and http.yaml,\n" +
		"# and openapi.base.yaml. Do not edit it.\n"
)

// openapi adds functions/openapi.yaml: the described routes, what the functions' http.yaml add to them (longer texts,
// examples, conditions), the paths of event functions, the events, and functions/openapi.base.yaml for all else.
func openapi(made files, d run.Description) error {
	text, err := os.ReadFile(base)
	if err != nil {
		return err
	}
	var file yaml.Node
	if err := yaml.Unmarshal(text, &file); err != nil {
		return fmt.Errorf("%s: %w", base, err)
	}
	for _, part := range d.OpenAPI {
		if err := addOperations(file.Content[0], part); err != nil {
			return err
		}
	}
	for _, f := range d.Functions {
		if err := addFunction(file.Content[0], f); err != nil {
			return err
		}
	}
	if err := addEvents(file.Content[0]); err != nil {
		return err
	}
	if err := addTexts(file.Content[0]); err != nil {
		return err
	}
	var out bytes.Buffer
	out.WriteString(header)
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if err := enc.Encode(&file); err != nil {
		return err
	}
	made[target] = out.Bytes()
	return nil
}

// addOperations puts what a function declares into the document.
func addOperations(root *yaml.Node, part run.OpenAPI) error {
	paths, err := node(part.Paths)
	if err != nil {
		return err
	}
	schemas, err := node(part.Schemas)
	if err != nil {
		return err
	}
	if err := merge(lookup(root, "paths"), paths); err != nil {
		return err
	}
	return merge(lookup(root, "components", "schemas"), schemas)
}

//go:embed event.yaml.tmpl
var eventPath string

// addFunction adds a function's tag, and the path at which an event function is woken, unless openapi.base.yaml has
// them.
func addFunction(root *yaml.Node, f run.Declaration) error {
	parsed, err := template.New("").Funcs(template.FuncMap{"operation": operation}).Parse(eventPath)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if err := parsed.Execute(&out, f); err != nil {
		return err
	}
	var file yaml.Node
	if err := yaml.Unmarshal(out.Bytes(), &file); err != nil {
		return err
	}
	tags, tag := lookup(root, "tags"), lookup(file.Content[0], "tags").Content[0]
	if index(byName(tags), f.Name) < 0 {
		tags.Content = append(tags.Content, tag)
	}
	if path := "/events/" + f.Name; f.Kind == "event" && lookup(root, "paths", path) == nil {
		return merge(lookup(root, "paths"), lookup(file.Content[0], "paths"))
	}
	return nil
}

// operation is the id of an event function's operation: runLeases for run-leases.
func operation(name string) string {
	words := strings.Split(name, "-")
	for i, word := range words[1:] {
		words[i+1] = strings.ToUpper(word[:1]) + word[1:]
	}
	return strings.Join(words, "")
}

// addTexts adds what the functions' http.yaml say of operations and schemas, and the examples.
func addTexts(root *yaml.Node) error {
	paths, err := filepath.Glob("functions/*/http.yaml")
	if err != nil {
		return err
	}
	operations := &yaml.Node{Kind: yaml.MappingNode}
	for _, item := range lookup(root, "paths").Content {
		for _, op := range item.Content {
			if id := lookup(op, "operationId"); id != nil {
				operations.Content = append(operations.Content, id, op)
			}
		}
	}
	schemas, given := lookup(root, "components", "schemas"), lookup(root, "examples")
	at := index(root, "examples")
	root.Content = slices.Delete(root.Content, at, at+2) // it is no part of OpenAPI
	known := &yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{
		text("operations"), operations, text("schemas"), schemas, text("examples"), given,
	}}
	for _, path := range paths {
		content, err := os.ReadFile(path) //nolint:gosec // a tool of developers
		if err != nil {
			return err
		}
		var file yaml.Node
		if err := yaml.Unmarshal(content, &file); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		for _, texts := range file.Content { // none when the file has only comments
			if err := extend(known, texts); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
		}
	}
	e := examples{given, schemas}
	for i := 1; i < len(operations.Content); i += 2 {
		if err := e.complete(lookup(operations.Content[i], "responses")); err != nil {
			return fmt.Errorf("%s: %w", operations.Content[i-1].Value, err)
		}
	}
	return e.complete(lookup(root, "components", "responses"))
}

// node is a value of huma's as YAML.
func node(v any) (*yaml.Node, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	var file yaml.Node
	if err := yaml.Unmarshal(text, &file); err != nil {
		return nil, err
	}
	tidy(file.Content[0])
	return file.Content[0], nil
}
