package main

import (
	"errors"
	"fmt"
	"path"
	"slices"

	"go.yaml.in/yaml/v3"
)

// examples are those of schemas, by name. An answer without an example has that of its schema. An answer, or one of its
// examples, may say by `with` which fields differ from that, instead of a whole value.
type examples struct{ given, schemas *yaml.Node }

// complete adds what the answers in responses lack, by their statuses or names.
func (e examples) complete(responses *yaml.Node) error {
	for i := 1; responses != nil && i < len(responses.Content); i += 2 {
		for _, kind := range []string{"application/json", "application/problem+json"} {
			media := lookup(responses.Content[i], "content", kind)
			if media == nil {
				continue
			}
			if err := e.completeMedia(media); err != nil {
				return fmt.Errorf("%s: %w", responses.Content[i-1].Value, err)
			}
		}
	}
	return nil
}

func (e examples) completeMedia(media *yaml.Node) error {
	bySchema, listed := e.of(lookup(media, "schema")), lookup(media, "examples")
	if listed == nil && bySchema != nil {
		return addValue(media, "example", bySchema)
	}
	for i := 1; listed != nil && i < len(listed.Content); i += 2 {
		if err := addValue(listed.Content[i], "value", bySchema); err != nil {
			return fmt.Errorf("%s: %w", listed.Content[i-1].Value, err)
		}
	}
	return nil
}

// addValue adds the example of a schema under a key, unless there is another one; `with` is replaced by it.
func addValue(to *yaml.Node, key string, bySchema *yaml.Node) error {
	switch {
	case lookup(to, key) != nil || to.Kind != yaml.MappingNode:
		return nil
	case bySchema == nil:
		return errors.New("the schema has no example")
	}
	value := bySchema
	if at := index(to, "with"); at >= 0 {
		value = with(bySchema, to.Content[at+1])
		to.Content = slices.Delete(to.Content, at, at+2)
	}
	to.Content = append(to.Content, text(key), value)
	return nil
}

// of is the example of a schema: as it is given, or made of those of its required properties. nil = there is none.
func (e examples) of(schema *yaml.Node) *yaml.Node {
	if ref := lookup(schema, "$ref"); ref != nil {
		name := path.Base(ref.Value)
		if given := lookup(e.given, name); given != nil {
			return given
		}
		return e.of(lookup(e.schemas, name))
	}
	if value := lookup(schema, "const"); value != nil {
		return value
	}
	if values := lookup(schema, "enum"); values != nil {
		return values.Content[0]
	}
	if parts := lookup(schema, "allOf"); parts != nil { // a schema, and what narrows it
		example := e.of(parts.Content[0])
		for _, part := range parts.Content[1:] {
			example = e.narrowed(example, lookup(part, "properties"))
		}
		return example
	}
	if nullable(schema) {
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Value: "null"}
	}
	if items := lookup(schema, "items"); items != nil {
		item := e.of(items)
		if item == nil {
			return nil
		}
		return &yaml.Node{Kind: yaml.SequenceNode, Content: []*yaml.Node{item}}
	}
	required := lookup(schema, "required")
	if required == nil {
		return nil
	}
	made := &yaml.Node{Kind: yaml.MappingNode}
	for _, name := range required.Content {
		value := e.of(lookup(schema, "properties", name.Value))
		if value == nil {
			return nil
		}
		made.Content = append(made.Content, text(name.Value), value)
	}
	return made
}

// narrowed is an example with those of some properties.
func (e examples) narrowed(example, properties *yaml.Node) *yaml.Node {
	if example == nil || properties == nil {
		return example
	}
	narrow := &yaml.Node{Kind: yaml.MappingNode}
	for i := 0; i < len(properties.Content); i += 2 {
		if value := e.of(properties.Content[i+1]); value != nil {
			narrow.Content = append(narrow.Content, properties.Content[i], value)
		}
	}
	return with(example, narrow)
}

// with is a mapping in which some entries are replaced, or added.
func with(mapping, entries *yaml.Node) *yaml.Node {
	result := &yaml.Node{Kind: yaml.MappingNode, Content: slices.Clone(mapping.Content)}
	for i := 0; i < len(entries.Content); i += 2 {
		if at := index(result, entries.Content[i].Value); at >= 0 {
			result.Content[at+1] = entries.Content[i+1]
		} else {
			result.Content = append(result.Content, entries.Content[i:i+2]...)
		}
	}
	return result
}

func text(value string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Value: value} }
