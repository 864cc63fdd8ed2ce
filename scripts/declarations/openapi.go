package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"go.yaml.in/yaml/v3"

	"github.com/cloudfn/cloudfn/shared/run"
)

const (
	rest   = "functions/openapi.rest.yaml"
	target = "functions/openapi.yaml"
	header = "# Written by scripts/declarations (make generate) from the functions' http.go and http.yaml, and openapi.rest.yaml. Do not edit it.\n"
)

// openapi adds functions/openapi.yaml: the described routes, what the functions' http.yaml add to them (longer texts, examples,
// conditions), and functions/openapi.rest.yaml for all else.
func openapi(made files, d run.Description) error {
	text, err := os.ReadFile(rest)
	if err != nil {
		return err
	}
	var file yaml.Node
	if err := yaml.Unmarshal(text, &file); err != nil {
		return fmt.Errorf("%s: %w", rest, err)
	}
	for _, part := range d.OpenAPI {
		if err := addOperations(file.Content[0], part); err != nil {
			return err
		}
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

// addTexts adds what the functions' http.yaml say of operations and schemas.
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
	for _, path := range paths {
		text, err := os.ReadFile(path) //nolint:gosec // a tool of developers
		if err != nil {
			return err
		}
		var file yaml.Node
		if err := yaml.Unmarshal(text, &file); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		for name, known := range map[string]*yaml.Node{"operations": operations, "schemas": lookup(root, "components", "schemas")} {
			if err := extend(known, lookup(file.Content[0], name)); err != nil {
				return fmt.Errorf("%s: %s.%w", path, name, err)
			}
		}
	}
	return nil
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
