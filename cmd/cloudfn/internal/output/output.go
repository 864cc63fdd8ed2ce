// Package output prints what the API gave: as a table for people, as JSON or YAML for programs, or as names for
// scripts.
package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"
	"unicode"

	"sigs.k8s.io/yaml"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
)

// Formats are what -o takes.
var Formats = []string{"table", "wide", "json", "yaml", "name"}

// Printer prints to one place in one format.
type Printer struct {
	Out     io.Writer
	Format  string
	Columns []string // only these, by their titles in a table and by their fields in JSON and YAML
	Color   bool
	Width   int // of the terminal, which a table keeps to; 0 = unlimited
}

// IsData reports whether the format is for programs: JSON or YAML.
func (p *Printer) IsData() bool { return p.Format == "json" || p.Format == "yaml" }

// List prints many things.
func List[T any](p *Printer, items []api.Item[T], t Table[T]) error {
	if p.IsData() {
		raw := make([]json.RawMessage, len(items))
		for i, item := range items {
			raw[i] = item.Raw
		}
		return p.data(raw, reflect.TypeFor[T]())
	}
	if p.Format == "name" {
		var names bytes.Buffer
		for _, item := range items {
			fmt.Fprintln(&names, Clean(t.name(item.Value)))
		}
		_, err := names.WriteTo(p.Out)
		return err
	}
	columns, err := choose(p, columns(t.Columns))
	if err != nil {
		return err
	}
	g := grid{hasColor: p.Color}
	if p.Format == "table" {
		g.width = p.Width
	}
	for _, c := range columns {
		g.head = append(g.head, c.title)
		g.isState = append(g.isState, c.isState)
	}
	for _, item := range items {
		row := make([]string, len(columns))
		for i, c := range columns {
			row[i] = t.Text(c.path, item.Value)
		}
		g.rows = append(g.rows, row)
	}
	return g.write(p.Out)
}

// Values prints many things that came as part of something else.
func Values[T any](p *Printer, all []T, t Table[T]) error {
	items := make([]api.Item[T], len(all))
	for i, value := range all {
		raw, err := json.Marshal(value)
		if err != nil {
			return err
		}
		items[i] = api.Item[T]{Value: value, Raw: raw}
	}
	return List(p, items, t)
}

// One prints one thing, a line per column; those that are empty are left out.
func One[T any](p *Printer, item api.Item[T], t Table[T]) error {
	if p.IsData() {
		return p.data(item.Raw, reflect.TypeFor[T]())
	}
	if p.Format == "name" {
		_, err := fmt.Fprintln(p.Out, Clean(t.name(item.Value)))
		return err
	}
	all := columns(slices.Concat(t.Columns, t.Details))
	if len(p.Columns) > 0 {
		var err error
		if all, err = choose(p, all); err != nil {
			return err
		}
	}
	g := grid{hasColor: p.Color}
	for _, c := range all {
		text := t.Text(c.path, item.Value)
		if text == "" {
			continue
		}
		if c.isState {
			text = Paint(p.Color, text)
		} else {
			text = Clean(text)
		}
		g.rows = append(g.rows, []string{c.label(), text})
	}
	return g.writeFacts(p.Out)
}

// data prints a value as JSON or YAML. Characters that could command a terminal are escaped. YAML cannot escape them
// in a plain text, so such a value is printed as JSON, which readers of YAML take as well.
func (p *Printer) data(v any, of reflect.Type) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if text, err = p.pick(text, of); err != nil {
		return err
	}
	if p.Format == "yaml" && bytes.Equal(Escape(text), text) {
		if text, err = yaml.JSONToYAML(text); err != nil {
			return err
		}
		_, err = p.Out.Write(text)
		return err
	}
	var pretty bytes.Buffer
	if err := json.Indent(&pretty, text, "", "  "); err != nil {
		return err
	}
	_, err = fmt.Fprintf(p.Out, "%s\n", Escape(pretty.Bytes()))
	return err
}

// Escape gives the same JSON without characters that could command a terminal. JSON's writers leave those beyond ASCII.
func Escape(text []byte) []byte {
	var safe bytes.Buffer
	for _, r := range string(text) {
		if r != '\n' && unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) {
			fmt.Fprintf(&safe, "\\u%04x", r)
			continue
		}
		safe.WriteRune(r)
	}
	return safe.Bytes()
}

// pick keeps the chosen fields of each object. The type says which fields exist: an optional one may be in no object.
func (p *Printer) pick(text []byte, of reflect.Type) ([]byte, error) {
	if len(p.Columns) == 0 {
		return text, nil
	}
	var known []string
	if of.Kind() == reflect.Struct {
		for _, f := range fields(of) {
			known = append(known, jsonName(f))
		}
	}
	has := func(names []string, name string) bool {
		return slices.ContainsFunc(names, func(other string) bool { return strings.EqualFold(name, other) })
	}
	for _, column := range p.Columns {
		if !has(known, column) {
			return nil, unknownColumn(column, known)
		}
	}
	keep := func(o map[string]json.RawMessage) {
		maps.DeleteFunc(o, func(field string, _ json.RawMessage) bool { return !has(p.Columns, field) })
	}
	var many []map[string]json.RawMessage
	if json.Unmarshal(text, &many) == nil {
		for _, o := range many {
			keep(o)
		}
		return json.Marshal(many)
	}
	var one map[string]json.RawMessage
	if err := json.Unmarshal(text, &one); err != nil {
		return nil, err
	}
	keep(one)
	return json.Marshal(one)
}
