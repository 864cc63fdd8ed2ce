// Command types makes the types of cmd/cloudfn/internal/api of the schemas in functions/openapi.yaml, with
// oapi-codegen. Run it by `make generate`.
//
// oapi-codegen knows JSON Schema as OpenAPI 3.0 had it. What restricts a type further (alternatives, conditions) is no
// part of a Go type, so it is left out of the copy that oapi-codegen gets; the test suite holds every answer against
// the whole. Of the types that oapi-codegen makes, those stay that the CLI names.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"sigs.k8s.io/yaml"
)

const (
	source    = "functions/openapi.yaml"
	target    = "cmd/cloudfn/internal/api/types.gen.go"
	generator = "github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen@v2.8.2"
	settings  = `package: api
generate: {models: true}
output-options:
  skip-prune: true
  skip-enum-validate: true
  name-normalizer: ToCamelCaseWithInitialisms
  type-mapping: {string: {formats: {uuid: {type: string}}}}
`
)

func main() {
	if err := generate(source, target); err != nil {
		fmt.Fprintln(os.Stderr, "types:", err)
		os.Exit(1)
	}
}

// generate writes the types of a document into a file.
func generate(source, target string) error {
	dir, err := os.MkdirTemp("", "types")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	text, err := os.ReadFile(source) //nolint:gosec // a tool of developers
	if err != nil {
		return err
	}
	if text, err = simplify(text); err != nil {
		return fmt.Errorf("%s: %w", source, err)
	}
	copied, config := filepath.Join(dir, "openapi.yaml"), filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(copied, text, 0o600); err != nil { //nolint:gosec // in a folder of its own
		return err
	}
	if err := os.WriteFile(config, []byte(settings), 0o600); err != nil {
		return err
	}
	args := []string{"run", generator, "-config", config, "-o", target, copied}
	cmd := exec.Command("go", args...) //nolint:gosec,noctx // a tool of developers
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return prune(target)
}

// simplify keeps the schemas, and of each what makes a type in Go.
func simplify(text []byte) ([]byte, error) {
	var document struct {
		OpenAPI    string         `json:"openapi"`
		Info       map[string]any `json:"info"`
		Paths      map[string]any `json:"paths"`
		Components struct {
			Schemas map[string]any `json:"schemas"`
		} `json:"components"`
	}
	if err := yaml.Unmarshal(text, &document); err != nil {
		return nil, err
	}
	document.Paths = map[string]any{}
	for _, schema := range document.Components.Schemas {
		restrict(schema)
	}
	return yaml.Marshal(document)
}

// narrows are the words that say which values of a type are right.
var narrows = []string{"if", "then", "else", "const", "pattern", "example", "examples", "unevaluatedProperties"}

// restrict drops them from a schema, and from what is within it.
func restrict(node any) {
	schema, ok := node.(map[string]any)
	if !ok {
		return
	}
	for _, word := range narrows {
		delete(schema, word)
	}
	properties, object := schema["properties"].(map[string]any)
	if object || schema["additionalProperties"] == true {
		delete(schema, "oneOf")
		delete(schema, "anyOf")
	}
	for _, property := range properties {
		restrict(property)
	}
	restrict(schema["items"])
	restrict(schema["additionalProperties"])
	for _, word := range []string{"allOf", "anyOf", "oneOf"} {
		parts, _ := schema[word].([]any)
		types := 0
		for _, part := range parts {
			restrict(part)
			if part, ok := part.(map[string]any); ok && part["type"] != "null" {
				types++
			}
		}
		if word != "allOf" && types > 1 { // its reader finds out which one it is
			delete(schema, word)
			schema["x-go-type"] = "json.RawMessage"
		}
	}
}
