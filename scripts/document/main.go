// Command document writes functions/openapi.yaml. It takes the routes that functions declare in http.go, what their http.yaml add to
// them (longer texts, examples, conditions), and functions/openapi.rest.yaml for all else. Run it by `make generate`.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/danielgtaylor/huma/v2"
	"go.yaml.in/yaml/v3"

	_ "github.com/cloudfn/cloudfn/functions/agents" // each function registers itself
	_ "github.com/cloudfn/cloudfn/functions/callbacks"
	_ "github.com/cloudfn/cloudfn/functions/connections"
	_ "github.com/cloudfn/cloudfn/functions/console"
	_ "github.com/cloudfn/cloudfn/functions/launch"
	_ "github.com/cloudfn/cloudfn/functions/resources"
	_ "github.com/cloudfn/cloudfn/functions/servers"
	_ "github.com/cloudfn/cloudfn/functions/stats"
	"github.com/cloudfn/cloudfn/shared/httpx"
	"github.com/cloudfn/cloudfn/shared/run"
)

const (
	rest   = "functions/openapi.rest.yaml"
	target = "functions/openapi.yaml"
	header = "# Written by scripts/document (make generate) from the functions' http.go and http.yaml, and openapi.rest.yaml. Do not edit it.\n"
)

func main() {
	if err := generate(); err != nil {
		fmt.Fprintln(os.Stderr, "document:", err)
		os.Exit(1)
	}
}

func generate() error {
	text, err := document()
	if err != nil {
		return err
	}
	return os.WriteFile(target, text, 0o644) //nolint:gosec // a file for everybody
}

// document is the text of openapi.yaml.
func document() ([]byte, error) {
	text, err := os.ReadFile(rest)
	if err != nil {
		return nil, err
	}
	var file yaml.Node
	if err := yaml.Unmarshal(text, &file); err != nil {
		return nil, fmt.Errorf("%s: %w", rest, err)
	}
	routes, err := run.Routes(context.Background())
	if err != nil {
		return nil, err
	}
	for _, described := range httpx.Documents(routes) {
		if err := add(file.Content[0], described); err != nil {
			return nil, err
		}
	}
	if err := addTexts(file.Content[0]); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	out.WriteString(header)
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	err = enc.Encode(&file)
	return out.Bytes(), err
}

// add puts what a function declares into the document.
func add(root *yaml.Node, described *huma.OpenAPI) error {
	paths, err := node(described.Paths)
	if err != nil {
		return err
	}
	schemas, err := node(described.Components.Schemas)
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
