package documents

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
)

// New makes a document of what the API answered for a managed resource or a flavor: only the fields that are declared.
func New(kind string, answer json.RawMessage) (d Document, err error) {
	fields := map[string]any{}
	reader := json.NewDecoder(bytes.NewReader(answer))
	reader.UseNumber()
	if err := reader.Decode(&fields); err != nil {
		return d, err
	}
	d = Document{Kind: kind, Fields: map[string]any{}}
	d.Name, _ = fields["name"].(string)
	known := resourceFields
	if d.IsFlavor() {
		known = flavorFields
		fields["for_kind"] = fields["kind"]
	}
	for _, field := range known[1:] {
		if value := fields[field]; !isZero(value) {
			d.Fields[field] = value
		}
	}
	return d, nil
}

func isZero(value any) bool {
	switch value := value.(type) {
	case nil:
		return true
	case string:
		return value == ""
	case map[string]any:
		return len(value) == 0
	}
	return false
}

// Write writes documents in a form that Read takes. Characters that could command a terminal are escaped: a document
// that has some is written as JSON, which readers of YAML take as well.
func Write(w io.Writer, all []Document) error {
	for i, d := range all {
		if i > 0 {
			if _, err := fmt.Fprintln(w, "---"); err != nil {
				return err
			}
		}
		text, err := d.encode()
		if err != nil {
			return err
		}
		if _, err := w.Write(text); err != nil {
			return err
		}
	}
	return nil
}

func (d Document) encode() ([]byte, error) {
	root := &yaml.Node{Kind: yaml.MappingNode}
	known := resourceFields
	if d.IsFlavor() {
		known = flavorFields
	}
	whole := d.whole()
	for _, field := range append([]string{"kind"}, known...) {
		value, ok := whole[field]
		if !ok {
			continue
		}
		node, err := nodeOf(value)
		if err != nil {
			return nil, err
		}
		root.Content = append(root.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: field}, node)
	}
	return text(root, whole)
}

// WriteValue writes a value alone, as Write does.
func WriteValue(w io.Writer, value any) error {
	root, err := nodeOf(value)
	if err != nil {
		return err
	}
	written, err := text(root, value)
	if err == nil {
		_, err = w.Write(written)
	}
	return err
}

// text is the YAML of a node, or the JSON of the value that it has.
func text(root *yaml.Node, value any) ([]byte, error) {
	var text bytes.Buffer
	encoder := yaml.NewEncoder(&text)
	encoder.SetIndent(2)
	if err := encoder.Encode(root); err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(bytes.Runes(text.Bytes()), needsEscape) {
		return text.Bytes(), nil
	}
	escaped, err := json.MarshalIndent(value, "", "  ")
	escaped = bytes.ReplaceAll(output.Escape(escaped), []byte(string(byteOrderMark)), []byte(`\ufeff`))
	return append(escaped, '\n'), err
}

// byteOrderMark is one that readers of YAML drop.
const byteOrderMark = '\uFEFF'

// whole is the document with all its fields.
func (d Document) whole() map[string]any {
	whole := map[string]any{"kind": d.Kind, "name": d.Name}
	maps.Copy(whole, d.Fields)
	return whole
}

// MarshalJSON implements json.Marshaler.
func (d Document) MarshalJSON() ([]byte, error) { return json.Marshal(d.whole()) }

func needsEscape(r rune) bool {
	isControl := r != '\n' && r != '\t' && unicode.IsControl(r)
	return isControl || unicode.Is(unicode.Bidi_Control, r) || r == byteOrderMark
}

// nodeOf is a value as YAML has it. It goes by JSON, so that numbers stay as the API gave them.
func nodeOf(value any) (*yaml.Node, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	var read any
	reader := json.NewDecoder(bytes.NewReader(text))
	reader.UseNumber()
	if err := reader.Decode(&read); err != nil {
		return nil, err
	}
	return node(read), nil
}

func node(value any) *yaml.Node {
	switch value := value.(type) {
	case map[string]any:
		all := &yaml.Node{Kind: yaml.MappingNode}
		for _, key := range slices.Sorted(maps.Keys(value)) {
			all.Content = append(all.Content, textNode(key), node(value[key]))
		}
		return all
	case []any:
		all := &yaml.Node{Kind: yaml.SequenceNode}
		for _, one := range value {
			all.Content = append(all.Content, node(one))
		}
		return all
	case string:
		return textNode(value)
	case nil:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Value: "null"}
	}
	return &yaml.Node{Kind: yaml.ScalarNode, Value: fmt.Sprint(value)} // a number, true or false
}

// textNode is a text: with quotes where a reader of YAML 1.1 or 1.2 would take it for something else, and in lines
// where it has several.
func textNode(text string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: text}
	isOldBool := slices.Contains([]string{"y", "n", "yes", "no", "on", "off"}, strings.ToLower(text))
	// A first line that is empty or indented would need an indicator, which the writer leaves out in lists.
	if isOldBool || strings.Contains(text, "\n") && strings.ContainsAny(text[:1], "\n\t ") {
		n.Style = yaml.DoubleQuotedStyle
	}
	return n
}
