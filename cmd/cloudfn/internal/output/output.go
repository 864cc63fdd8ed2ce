// Package output prints what the API gave: as a table for people, as JSON or YAML for programs, or as names for scripts.
package output

import (
	"bytes"
	"cmp"
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
}

// Validate refuses a format that there is not.
func (p *Printer) Validate() error {
	if !slices.Contains(Formats, p.Format) {
		return fmt.Errorf("-o is %q: it must be one of %s", p.Format, strings.Join(Formats, ", "))
	}
	return nil
}

// Column is one of a table.
type Column[T any] struct {
	Title string // upper case: ID
	Wide  bool   // shown by -o wide only, or when it is asked for
	State bool   // colored by what it says
	Text  func(T) string
}

// List prints many things. name is how each is called in -o name.
func List[T any](p *Printer, items []api.Item[T], name func(T) string, columns []Column[T]) error {
	switch p.Format {
	case "json", "yaml":
		raw := make([]json.RawMessage, len(items))
		for i, item := range items {
			raw[i] = item.Raw
		}
		return p.data(raw, fields(reflect.TypeFor[T]()))
	case "name":
		var names bytes.Buffer
		for _, item := range items {
			fmt.Fprintln(&names, Clean(name(item.Value)))
		}
		_, err := names.WriteTo(p.Out)
		return err
	}
	columns, err := choose(p, columns)
	if err != nil {
		return err
	}
	t := table{color: p.Color}
	for _, c := range columns {
		t.head = append(t.head, c.Title)
		t.state = append(t.state, c.State)
	}
	for _, item := range items {
		row := make([]string, len(columns))
		for i, c := range columns {
			row[i] = c.Text(item.Value)
		}
		t.rows = append(t.rows, row)
	}
	return t.write(p.Out)
}

// One prints one thing, a line per column; those that are empty are left out.
func One[T any](p *Printer, item api.Item[T], name func(T) string, columns []Column[T]) error {
	switch p.Format {
	case "json", "yaml":
		return p.data(item.Raw, fields(reflect.TypeFor[T]()))
	case "name":
		_, err := fmt.Fprintln(p.Out, Clean(name(item.Value)))
		return err
	}
	if len(p.Columns) > 0 {
		var err error
		if columns, err = choose(p, columns); err != nil {
			return err
		}
	}
	t := table{color: p.Color}
	for _, c := range columns {
		text := c.Text(item.Value)
		if text == "" {
			continue
		}
		label := strings.ToUpper(c.Title[:1]) + strings.ReplaceAll(strings.ToLower(c.Title[1:]), "_", " ")
		if c.Title == "ID" || c.Title == "URL" {
			label = c.Title
		}
		if c.State {
			text = Paint(p.Color, text)
		} else {
			text = Clean(text)
		}
		t.rows = append(t.rows, []string{label + ":", text})
	}
	return t.lines(p.Out)
}

// choose gives the columns that are asked for, in that order; else all that are not wide.
func choose[T any](p *Printer, all []Column[T]) ([]Column[T], error) {
	if len(p.Columns) == 0 {
		if p.Format == "wide" {
			return all, nil
		}
		return slices.DeleteFunc(slices.Clone(all), func(c Column[T]) bool { return c.Wide }), nil
	}
	var chosen []Column[T]
	for _, title := range p.Columns {
		i := slices.IndexFunc(all, func(c Column[T]) bool { return strings.EqualFold(c.Title, title) })
		if i < 0 {
			titles := make([]string, len(all))
			for i, c := range all {
				titles[i] = strings.ToLower(c.Title)
			}
			return nil, ColumnError{title, titles}
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

// ColumnError is that of a column that there is not.
type ColumnError struct {
	Column  string
	Columns []string // those that there are
}

// Error names the columns that there are.
func (e ColumnError) Error() string {
	return fmt.Sprintf("--columns has %q: the columns are %s", e.Column, strings.Join(e.Columns, ", "))
}

// data prints JSON as it came but for its white space, or the same as YAML. What could command a terminal is escaped in both; a plain
// text of YAML has no escapes, and its readers take JSON as well.
func (p *Printer) data(v any, known []string) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if text, err = p.pick(text, known); err != nil {
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

// Escape is JSON that says the same and cannot command a terminal: the controls beyond ASCII are not escaped by everybody.
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

// fields are the names that the type's fields have in JSON.
func fields(of reflect.Type) (names []string) {
	if of.Kind() != reflect.Struct {
		return nil
	}
	for _, f := range reflect.VisibleFields(of) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.IsExported() || f.Anonymous || name == "-" {
			continue
		}
		names = append(names, cmp.Or(name, f.Name))
	}
	return names
}

// pick keeps of each object the fields that are asked for. Which there are says the type: one that is optional may be in no object.
func (p *Printer) pick(text []byte, known []string) ([]byte, error) {
	if len(p.Columns) == 0 {
		return text, nil
	}
	asked := func(field string) func(string) bool {
		return func(column string) bool { return strings.EqualFold(column, field) }
	}
	for _, column := range p.Columns {
		if !slices.ContainsFunc(known, asked(column)) {
			return nil, ColumnError{column, known}
		}
	}
	keep := func(o map[string]json.RawMessage) {
		maps.DeleteFunc(o, func(field string, _ json.RawMessage) bool { return !slices.ContainsFunc(p.Columns, asked(field)) })
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
