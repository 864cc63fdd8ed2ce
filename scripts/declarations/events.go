package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"text/template"

	"go.yaml.in/yaml/v3"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/run"
)

//go:embed webhook.yaml.tmpl
var webhook string

// addEvents adds the webhooks of the events that callbacks get, and the schemas of their data.
func addEvents(root *yaml.Node) error {
	parsed, err := template.New("").Funcs(template.FuncMap{"quote": strconv.Quote}).Parse(webhook)
	if err != nil {
		return err
	}
	schemas := lookup(root, "components", "schemas")
	actions := append(domain.Actions(), string(domain.Connect), string(domain.Disconnect),
		string(domain.AttachVolume), string(domain.DetachVolume))
	made := map[string]any{
		"EventActor":       described(object(schemas, reflect.TypeFor[domain.Actor]()), actor),
		"EventActorAction": described(textOf(actions), "What was done to the server."),
	}
	for _, e := range domain.Events() {
		if e.SinkOnly {
			continue
		}
		data := reflect.TypeOf(e.Data)
		made[data.Name()] = described(object(schemas, data), "Data of `"+e.Type+"`.")
		var out bytes.Buffer
		if err := parsed.Execute(&out, struct {
			domain.EventType
			Schema, Description string
		}{e, data.Name(), description(e)}); err != nil {
			return err
		}
		var file yaml.Node
		if err := yaml.Unmarshal(out.Bytes(), &file); err != nil {
			return fmt.Errorf("%s: %w", e.Type, err)
		}
		tidy(lookup(file.Content[0], e.Type, "post"))
		if err := merge(lookup(root, "webhooks"), file.Content[0]); err != nil {
			return err
		}
	}
	all, err := node(made)
	if err != nil {
		return err
	}
	return merge(schemas, all)
}

const actor = "Whose request has caused the change, and by what. Absent when no request did, such as for a change " +
	"by Nova alone. A callback of another project than the event's, which gets it through a connection, sees actors " +
	"of its own project only."

func described(schema map[string]any, text string) map[string]any {
	schema["description"] = text
	return schema
}

func description(e domain.EventType) string {
	return strings.TrimSpace("The subject is " + e.Subject + ". " + e.Notes)
}

// object is the schema of a struct. A field without omitempty or omitzero is required.
func object(known *yaml.Node, t reflect.Type) map[string]any {
	properties, required := map[string]any{}, []string{}
	for field := range t.Fields() {
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		properties[name] = property(known, field)
		if options == "" {
			required = append(required, name)
		}
	}
	return map[string]any{
		"type": "object", "additionalProperties": false, "required": required, "properties": properties,
	}
}

// property is the schema of a field, by its type and its tags.
func property(known *yaml.Node, field reflect.StructField) map[string]any {
	schema := schemaOf(known, field.Type)
	if name := field.Tag.Get("schema"); name != "" {
		schema = reference(name)
	}
	switch enum := field.Tag.Get("enum"); {
	case enum != "" && field.Type.Kind() == reflect.Bool:
		schema["enum"] = []bool{enum == "true"}
	case enum != "":
		schema = textOf(strings.Split(enum, ","))
	}
	if doc := field.Tag.Get("doc"); doc != "" {
		described(schema, doc)
	}
	for _, limit := range []string{"minLength", "minItems", "minimum"} {
		if n, err := strconv.Atoi(field.Tag.Get(limit)); err == nil {
			schema[limit] = n
		}
	}
	if field.Tag.Get("uniqueItems") == "true" {
		schema["uniqueItems"] = true
	}
	return schema
}

// schemaOf describes a type: by the schema of its name, if there is one.
func schemaOf(known *yaml.Node, t reflect.Type) map[string]any {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if index(known, t.Name()) >= 0 {
		return reference(t.Name())
	}
	if e, ok := reflect.TypeAssert[interface{ Values() []string }](reflect.Zero(t)); ok {
		return textOf(e.Values())
	}
	switch t.Kind() {
	case reflect.Struct:
		return object(known, t)
	case reflect.Slice:
		return map[string]any{"type": "array", "items": schemaOf(known, t.Elem())}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Int:
		return map[string]any{"type": "integer"}
	default:
		return map[string]any{"type": "string"}
	}
}

func reference(name string) map[string]any {
	return map[string]any{"$ref": "#/components/schemas/" + name}
}

func textOf(values []string) map[string]any { return map[string]any{"type": "string", "enum": values} }

// eventTable is the table of the types of events that a callback may subscribe to.
func eventTable(made files, _ run.Description) error {
	var out strings.Builder
	out.WriteString("| type | subject | when | data |\n|---|---|---|---|\n")
	types := domain.EventTypes()
	for _, e := range domain.Events() {
		if !slices.Contains(types, e.Type) {
			continue
		}
		var names []string
		for field := range reflect.TypeOf(e.Data).Fields() {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			names = append(names, "`"+name+"`")
		}
		when := strings.TrimSpace(e.Summary + ". " + e.Notes)
		fmt.Fprintf(&out, "| `%s` | %s | %s | %s |\n", e.Type, e.Subject, when, strings.Join(names, ", "))
	}
	return replace(made, "functions/callbacks/README.md", "events", out.String())
}
