package main

import (
	"encoding/json"
	"strings"

	"go.yaml.in/yaml/v3"
)

// width is how long a line of JSON may become before it is broken.
const width = 76

// toJSON writes an example as JSON, in the order in which it is written, each part on one line if it fits.
func toJSON(n *yaml.Node) string {
	var out strings.Builder
	writeJSON(&out, n, "")
	return out.String()
}

func writeJSON(out *strings.Builder, n *yaml.Node, indent string) {
	if line := oneLine(n); len(indent)+len(line) <= width || n.Kind == yaml.ScalarNode {
		out.WriteString(line)
		return
	}
	opening, closing, step := "[", "]", 1
	if n.Kind == yaml.MappingNode {
		opening, closing, step = "{", "}", 2
	}
	out.WriteString(opening + "\n")
	for i := 0; i < len(n.Content); i += step {
		out.WriteString(indent + "  ")
		if step == 2 {
			out.WriteString(quoted(n.Content[i].Value) + ": ")
		}
		writeJSON(out, n.Content[i+step-1], indent+"  ")
		if i+step < len(n.Content) {
			out.WriteString(",")
		}
		out.WriteString("\n")
	}
	out.WriteString(indent + closing)
}

func oneLine(n *yaml.Node) string {
	var parts []string
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			parts = append(parts, quoted(n.Content[i].Value)+": "+oneLine(n.Content[i+1]))
		}
		if len(parts) == 0 {
			return "{}"
		}
		return "{ " + strings.Join(parts, ", ") + " }"
	case yaml.SequenceNode:
		for _, item := range n.Content {
			parts = append(parts, oneLine(item))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	}
	switch n.ShortTag() {
	case "!!int", "!!float", "!!bool", "!!null":
		return n.Value
	}
	return quoted(n.Value)
}

func quoted(text string) string {
	var out strings.Builder
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(text) //nolint:errchkjson // text always can
	return strings.TrimSuffix(out.String(), "\n")
}
