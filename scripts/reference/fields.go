package main

import (
	"html/template"
	"slices"
	"strings"
)

// field is one property of a schema, or a parameter.
type field struct {
	Name, In string
	Type     kind
	Required bool
	Limits   []string
	About    template.HTML
	Fields   []field // what is in it, when that is shown here
}

// kind is the type of a value in words, with a link to the schema that has more to say.
type kind struct {
	Before, Text, Link string
	Nullable           bool
}

// depth is how far the fields of a body are shown within one another; deeper ones are linked.
const depth = 3

// fieldsOf are the properties of an object, in the order in which they are written.
func fieldsOf(schema node, level int) []field {
	required := schema.get("required").words()
	var list []field
	for name, property := range schema.get("properties").pairs() {
		f := describe(property)
		f.Name, f.Required = name, slices.Contains(required, name)
		if inner := within(property); inner.get("properties").there() && level > 1 {
			f.Fields = fieldsOf(inner, level-1)
		}
		list = append(list, f)
	}
	return list
}

// within is the object that a value is or consists of.
func within(schema node) node {
	schema, _ = some(schema)
	if items := schema.get("items"); items.there() {
		return within(items)
	}
	return schema
}

// some is the one schema of two that are alternatives, when the other is null.
func some(schema node) (one node, nullable bool) {
	for _, word := range []string{"anyOf", "oneOf"} {
		if list := schema.get(word).items(); len(list) == 2 && list[1].text("type") == "null" {
			return list[0], true
		}
	}
	return schema, false
}

func describe(schema node) field {
	f := field{Type: typeOf(schema), About: about(schema)}
	schema, _ = some(schema)
	if f.About == "" {
		f.About = about(schema)
	}
	f.Limits = limits(schema)
	return f
}

// about is what is said of a value, but for what every value of its kind is like.
func about(schema node) template.HTML {
	if schema.get("format").there() && schema.over != nil && lookup(schema.over, "description") == nil {
		return ""
	}
	return markdown(schema.text("description"))
}

// typeOf says what a value is.
func typeOf(schema node) kind {
	schema, nullable := some(schema)
	if items := schema.get("items"); items.there() {
		k := typeOf(items)
		k.Before, k.Nullable = "list of "+k.Before, nullable || slices.Contains(schema.get("type").words(), "null")
		return k
	}
	k := kind{Nullable: nullable, Text: schema.text("type")}
	for _, word := range schema.get("type").words() {
		if word == "null" {
			k.Nullable = true
		} else {
			k.Text = word
		}
	}
	switch {
	case k.Text == "object" && schema.get("additionalProperties").there() && !schema.get("properties").there():
		k.Text = "object of " + typeOf(schema.get("additionalProperties")).Text + "s"
	case k.Text == "string" && schema.text("format") != "":
		k.Text = map[string]string{"uuid": "UUID", "date-time": "time"}[schema.text("format")]
		if k.Text == "" {
			k.Text = "string"
		}
	case k.Text == "" && schema.get("oneOf").there():
		k.Text = "one of several"
	case k.Text == "" && schema.get("const").there():
		k.Text = toJSON(schema.get("const").Node)
	}
	if worthALink(schema) {
		k.Text, k.Link = schema.name, "#schema-"+schema.name
	}
	return k
}

// worthALink says whether there is more to a named schema than can be said in its place.
func worthALink(schema node) bool {
	return schema.name != "" && (schema.get("properties").there() || schema.get("oneOf").there() || schema.get("enum").there())
}

// limits are what a value has to be besides its type.
func limits(schema node) []string {
	var list []string
	if words := schema.get("enum").words(); len(words) > 0 {
		list = append(list, "one of "+strings.Join(words, ", "))
	}
	for _, l := range []struct{ key, words string }{
		{"minimum", "at least %"},
		{"maximum", "at most %"},
		{"minLength", "at least % characters"},
		{"maxLength", "at most % characters"},
		{"minItems", "at least % entries"},
		{"maxItems", "at most % entries"},
		{"maxProperties", "at most % entries"},
	} {
		value := schema.text(l.key)
		if value == "" || value == "1" && strings.HasPrefix(l.key, "min") && l.key != "minimum" || value == "0" && l.key == "maxItems" {
			continue
		}
		list = append(list, strings.ReplaceAll(l.words, "%", value))
	}
	if byDefault := schema.get("default"); byDefault.there() && toJSON(byDefault.Node) != `""` {
		list = append(list, "default "+toJSON(byDefault.Node))
	}
	return list
}
