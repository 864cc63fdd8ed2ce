package main

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// lookup follows keys; nil if one is absent.
func lookup(n *yaml.Node, keys ...string) *yaml.Node {
	for _, key := range keys {
		at := index(n, key)
		if at < 0 {
			return nil
		}
		n = n.Content[at+1]
	}
	return n
}

// index is where a key of a mapping is; -1 if it is absent.
func index(n *yaml.Node, key string) int {
	if n == nil || n.Kind != yaml.MappingNode {
		return -1
	}
	for i := 0; i < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return i
		}
	}
	return -1
}

// merge adds entries to a mapping. Two functions may describe the same thing, but not differently.
func merge(into, entries *yaml.Node) error {
	for i := 0; i < len(entries.Content); i += 2 {
		key, value := entries.Content[i], entries.Content[i+1]
		at := index(into, key.Value)
		switch {
		case at < 0:
			into.Content = append(into.Content, key, value)
		case !same(into.Content[at+1], value):
			return fmt.Errorf("%s is described twice, differently", key.Value)
		}
	}
	return nil
}

// extend adds texts to what is known by the same names. Below those, a mapping that stands for a list names its
// entries by "name".
func extend(known, texts *yaml.Node) error {
	if texts.Kind != yaml.MappingNode {
		return fmt.Errorf("line %d: must be a mapping", texts.Line)
	}
	for i := 0; i < len(texts.Content); i += 2 {
		name := texts.Content[i].Value
		at := index(known, name)
		if at < 0 {
			return fmt.Errorf("%s is unknown", name)
		}
		if err := deepen(known.Content[at+1], texts.Content[i+1]); err != nil {
			return fmt.Errorf("%s.%w", name, err)
		}
	}
	return nil
}

// deepen adds the entries of a mapping, and of those within it.
func deepen(into, from *yaml.Node) error {
	if into.Kind == yaml.SequenceNode {
		return extend(byName(into), from)
	}
	if into.Kind != yaml.MappingNode || from.Kind != yaml.MappingNode {
		return fmt.Errorf("line %d: only a mapping can be added to a mapping", from.Line)
	}
	for i := 0; i < len(from.Content); i += 2 {
		key, value := from.Content[i], from.Content[i+1]
		at := index(into, key.Value)
		switch {
		case at < 0:
			into.Content = append(into.Content, key, value)
		case value.Kind != yaml.MappingNode:
			return fmt.Errorf("%s is said twice", key.Value)
		default:
			if err := deepen(into.Content[at+1], value); err != nil {
				return fmt.Errorf("%s.%w", key.Value, err)
			}
		}
	}
	return nil
}

func byName(list *yaml.Node) *yaml.Node {
	byKey := &yaml.Node{Kind: yaml.MappingNode}
	for _, item := range list.Content {
		if name := lookup(item, "name"); name != nil {
			byKey.Content = append(byKey.Content, name, item)
		}
	}
	return byKey
}

func same(a, b *yaml.Node) bool {
	return a.Kind == b.Kind && a.Value == b.Value && slices.EqualFunc(a.Content, b.Content, same)
}

// tidy makes what was JSON read like YAML, and like OpenAPI where huma's form is its own.
func tidy(n *yaml.Node) {
	n.Style = 0
	if strings.Contains(n.Value, "\n") {
		n.Style = yaml.LiteralStyle
	}
	if at := index(n, "patternDescription"); at >= 0 { // only huma's error texts have it
		n.Content = slices.Delete(n.Content, at, at+2)
	}
	if values := lookup(n, "enum"); values != nil && nullable(n) {
		values.Content = append(values.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Value: "null"})
	}
	for _, child := range n.Content {
		tidy(child)
	}
}

func nullable(schema *yaml.Node) bool {
	kind := lookup(schema, "type")
	return kind != nil && slices.ContainsFunc(kind.Content, func(n *yaml.Node) bool { return n.Value == "null" })
}
