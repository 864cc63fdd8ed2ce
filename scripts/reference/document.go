package main

import (
	"iter"
	"strings"

	"go.yaml.in/yaml/v3"
)

// document is openapi.yaml in the order in which it is written, which is the order that it is read in.
type document struct{ root *yaml.Node }

func parse(text []byte) (document, error) {
	var file yaml.Node
	if err := yaml.Unmarshal(text, &file); err != nil {
		return document{}, err
	}
	return document{file.Content[0]}, nil
}

// node is a part of the document; the zero node is one that is not there.
type node struct {
	doc document
	*yaml.Node
	name string // of the shared part that a reference has led to; "" = it is written here
	over *yaml.Node
}

func (d document) at(keys ...string) node {
	n := node{doc: d, Node: d.root}
	for _, key := range keys {
		n = n.get(key)
	}
	return n
}

func (n node) there() bool { return n.Node != nil }

// get is the value of a key, behind the reference if it is one. What is written beside a reference goes first.
func (n node) get(key string) node {
	for _, in := range []*yaml.Node{n.over, n.Node} {
		if value := lookup(in, key); value != nil {
			return n.doc.follow(value)
		}
	}
	return node{doc: n.doc}
}

func lookup(in *yaml.Node, key string) *yaml.Node {
	if in == nil || in.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(in.Content); i += 2 {
		if in.Content[i].Value == key {
			return in.Content[i+1]
		}
	}
	return nil
}

func (d document) follow(value *yaml.Node) node {
	ref := lookup(value, "$ref")
	if ref == nil {
		return node{doc: d, Node: value}
	}
	keys := strings.Split(strings.TrimPrefix(ref.Value, "#/"), "/")
	found := d.at(keys...)
	if !found.there() {
		panic("openapi.yaml has no " + ref.Value) // its tests would have failed
	}
	found.name, found.over = keys[len(keys)-1], value
	return found
}

// text is a scalar as text; "" when it is not there.
func (n node) text(key string) string {
	value := n.get(key)
	if !value.there() {
		return ""
	}
	return value.Value
}

func (n node) required() bool { return n.text("required") == "true" }

// pairs are the keys and values of a map, or of none.
func (n node) pairs() iter.Seq2[string, node] {
	return func(yield func(string, node) bool) {
		if !n.there() || n.Kind != yaml.MappingNode {
			return
		}
		for i := 0; i+1 < len(n.Content); i += 2 {
			if !yield(n.Content[i].Value, n.doc.follow(n.Content[i+1])) {
				return
			}
		}
	}
}

// items are the values of a list, or of none.
func (n node) items() []node {
	if !n.there() || n.Kind != yaml.SequenceNode {
		return nil
	}
	list := make([]node, len(n.Content))
	for i, item := range n.Content {
		list[i] = n.doc.follow(item)
	}
	return list
}

// words are the scalars of a list.
func (n node) words() []string {
	var list []string
	for _, item := range n.items() {
		list = append(list, item.Value)
	}
	return list
}
