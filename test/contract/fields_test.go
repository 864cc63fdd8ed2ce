package contract_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
)

// setter sets one field in a value, as encoding/json decodes it, and adds the objects and lists around it.
type setter func(value, to any) any

// field is a field of a body.
type field struct {
	schema *openapi3.Schema
	set    setter
}

// fieldsOf are the fields of a schema that are wanted. Of a list it is the first entry, of a map the key x.
func fieldsOf(schema *openapi3.Schema, isWanted func(*openapi3.Schema) bool) map[string]field {
	found := map[string]field{}
	if isWanted(schema) {
		found[""] = field{schema, func(_, to any) any { return to }}
	}
	add := func(of *openapi3.SchemaRef, at string, inside func(setter) setter) {
		for name, f := range fieldsOf(of.Value, isWanted) {
			found[at+dotted(at, name)] = field{f.schema, inside(f.set)}
		}
	}
	for _, one := range slices.Concat(schema.OneOf, schema.AnyOf, schema.AllOf) {
		add(one, "", func(set setter) setter { return set })
	}
	if schema.Items != nil {
		add(schema.Items, "[0]", inFirst)
	}
	for name, property := range schema.Properties {
		add(property, name, func(set setter) setter { return inObject(name, set) })
	}
	if values := schema.AdditionalProperties.Schema; values != nil {
		add(values, "x", func(set setter) setter { return inObject("x", set) })
	}
	return found
}

func inFirst(set setter) setter {
	return func(value, to any) any {
		list, _ := value.([]any)
		if len(list) == 0 {
			list = []any{nil}
		}
		list = slices.Clone(list)
		list[0] = set(list[0], to)
		return list
	}
}

func inObject(name string, set setter) setter {
	return func(value, to any) any {
		object, _ := value.(map[string]any)
		if object = maps.Clone(object); object == nil {
			object = map[string]any{}
		}
		object[name] = set(object[name], to)
		return object
	}
}

// dotted is a field as it follows the name of its object.
func dotted(object, field string) string {
	if object == "" || field == "" || field[0] == '[' {
		return field
	}
	return fmt.Sprint(".", field)
}

// changed is a body with another value of a field.
func changed(t *testing.T, body string, set setter, to any) string {
	t.Helper()
	var value any
	if err := json.Unmarshal([]byte(body), &value); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(set(value, to))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
