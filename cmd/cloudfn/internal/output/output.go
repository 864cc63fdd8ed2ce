// Package output prints what the API gave: as a table for people, as JSON, YAML or CSV for programs, or as names and
// values for scripts.
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
	"strconv"
	"strings"
	"time"
	"unicode"

	"sigs.k8s.io/yaml"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
)

// Formats are what -o takes.
var Formats = []string{"table", "wide", "json", "yaml", "name", "csv", "value"}

// Printer prints to one place in one format.
type Printer struct {
	Out     io.Writer
	Format  string
	Columns []string // only these, by their titles in a table and by their fields in JSON and YAML
	Color   bool
	Width   int // of the terminal, which a table keeps to; 0 = unlimited

	Sort      string // the column by which lists are sorted, with :desc for the other order; "" = as the API has them
	NoHeaders bool

	template template                                // of the formats that have one
	used     struct{ sort, columns, noHeaders bool } // which of these had an effect
}

// Unused are the flags that were given and had no effect on what was printed. JSON, names and values have no titles.
func (p *Printer) Unused() (flags []string) {
	hasTitles := p.IsTable() || p.Format == "csv" || p.Format == customColumns
	for _, f := range []struct {
		name             string
		isGiven, wasUsed bool
	}{
		{"sort", p.Sort != "", p.used.sort},
		{"columns", len(p.Columns) > 0, p.used.columns},
		{"no-headers", p.NoHeaders && hasTitles, p.used.noHeaders},
	} {
		if f.isGiven && !f.wasUsed {
			flags = append(flags, f.name)
		}
	}
	return flags
}

// IsData reports whether the format is for programs: JSON, YAML, or what a template chooses of it.
func (p *Printer) IsData() bool { return p.Format == "json" || p.Format == "yaml" || p.hasTemplate() }

// IsTable reports whether the format is for people.
func (p *Printer) IsTable() bool { return p.Format == "table" || p.Format == "wide" }

// IsPerRow reports whether what is printed of a list's entry depends on no other entry.
func (p *Printer) IsPerRow() bool {
	return p.Sort == "" && (p.Format == "csv" || p.Format == "value" || p.Format == "name")
}

// IsWhole reports whether all of a thing is printed for people.
func (p *Printer) IsWhole() bool { return p.IsTable() && len(p.Columns) == 0 }

// List prints many things.
func List[T any](p *Printer, items []api.Item[T], t Table[T]) error {
	items, err := sorted(p, items, t)
	if err != nil {
		return err
	}
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
	p.used.noHeaders = true
	g := grid{hasColor: p.Color, noHead: p.NoHeaders}
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
	if !p.IsTable() {
		return p.plain(g.head, g.rows)
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

// Below prints things below what was printed before, if there are any.
func Below[T any](p *Printer, all []T, t Table[T]) error {
	if len(all) == 0 {
		return nil
	}
	fmt.Fprintln(p.Out)
	return Values(p, all, t)
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
	if !p.IsTable() {
		return p.plainOne(all, func(c column) string { return t.Text(c.path, item.Value) })
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
	if p.hasTemplate() {
		return p.apply(text)
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

// Data prints a value in a format for programs.
func Data[T any](p *Printer, v T) error { return p.data(v, reflect.TypeFor[T]()) }

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
	if p.used.columns = true; len(p.Columns) == 0 {
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

// Table says how things of one type are shown. A column is written as TITLE or TITLE:path. The path leads to the field
// that it shows, by the names in JSON (instance.state); by default it is the title in lower case. TITLE* is a state,
// which has a color. Only -o wide and --columns show TITLE+.
type Table[T any] struct {
	Columns []string
	Details []string                  // shown besides, of one thing
	Texts   map[string]func(T) string // of columns that show no field, by their titles
	Name    func(T) string            // for -o name; nil = the field id
}

// Text is a column's text for one thing, by the column's title or path.
func (t Table[T]) Text(column string, value T) string {
	if text := t.Texts[column]; text != nil {
		return text(value)
	}
	return text(field(reflect.ValueOf(value), strings.ToLower(column)))
}

func (t Table[T]) name(value T) string {
	if t.Name != nil {
		return t.Name(value)
	}
	return t.Text("id", value)
}

// column is one of a table.
type column struct {
	title           string
	path            string
	isState, isWide bool
}

func columns(texts []string) []column {
	all := make([]column, len(texts))
	for i, text := range texts {
		title, path, _ := strings.Cut(text, ":")
		c := column{title: strings.TrimRight(title, "*+"), path: path}
		c.isState, c.isWide = strings.Contains(title, "*"), strings.Contains(title, "+")
		c.path = cmp.Or(path, c.title)
		all[i] = c
	}
	return all
}

// label is the title as it stands before a single thing's value.
func (c column) label() string {
	if c.title == "ID" || c.title == "URL" {
		return c.title + ":"
	}
	return abbreviations.Replace(c.title[:1]+strings.ReplaceAll(strings.ToLower(c.title[1:]), "_", " ")) + ":"
}

// abbreviations are written as everybody writes them.
var abbreviations = strings.NewReplacer("Vcpus", "vCPUs", " vcpus", " vCPUs", "Ram", "RAM", " ram", " RAM", " mb",
	" MB", " gb", " GB")

// choose gives the columns that the user wants, in that order; by default those that are not wide.
func choose(p *Printer, all []column) ([]column, error) {
	if p.used.columns = true; len(p.Columns) == 0 {
		if p.Format == "wide" || p.Format == "csv" {
			return all, nil
		}
		return slices.DeleteFunc(all, func(c column) bool { return c.isWide }), nil
	}
	titles := make([]string, len(all))
	for i, c := range all {
		titles[i] = strings.ToLower(c.title)
	}
	var chosen []column
	for _, title := range p.Columns {
		i := slices.Index(titles, strings.ToLower(title))
		if i < 0 {
			return nil, unknownColumn(title, titles)
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

func unknownColumn(column string, known []string) error {
	return exit.Usagef("--columns has %q: the columns are %s", column, strings.Join(known, ", "))
}

// field follows a path of JSON names through structs and maps. What is absent gives the zero Value.
func field(v reflect.Value, path string) reflect.Value {
	for name := range strings.SplitSeq(path, ".") {
		for v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface {
			v = v.Elem()
		}
		switch v.Kind() {
		case reflect.Struct:
			i := slices.IndexFunc(fields(v.Type()), func(f reflect.StructField) bool { return jsonName(f) == name })
			if i < 0 {
				panic(fmt.Sprintf("%s has no field %s", v.Type(), name))
			}
			v = v.FieldByIndex(fields(v.Type())[i].Index)
		case reflect.Map:
			v = v.MapIndex(reflect.ValueOf(name))
		default:
			return reflect.Value{}
		}
	}
	return v
}

// fields are the fields of a struct that JSON knows.
func fields(of reflect.Type) []reflect.StructField {
	return slices.DeleteFunc(reflect.VisibleFields(of), func(f reflect.StructField) bool {
		return !f.IsExported() || f.Anonymous || jsonName(f) == "-"
	})
}

func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return cmp.Or(name, f.Name)
}

// text shows a field. What is absent is an empty text.
func text(v reflect.Value) string {
	for v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface {
		v = v.Elem()
	}
	if !v.IsValid() {
		return ""
	}
	if t, ok := reflect.TypeAssert[time.Time](v); ok {
		return Time(t)
	}
	if v.Kind() == reflect.Slice {
		texts := make([]string, v.Len())
		for i := range texts {
			texts[i] = text(v.Index(i))
		}
		return strings.Join(texts, ",")
	}
	return fmt.Sprint(v.Interface())
}

// Pairs lists texts by their keys: a=b,c=d.
func Pairs(texts map[string]string) string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(texts)) {
		all = append(all, key+"="+texts[key])
	}
	return strings.Join(all, ",")
}

// Time shows a time in UTC; the zero time is an empty text.
func Time(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05Z")
}

// Count is a number of things: 1 server, 2 servers.
func Count(n int, thing string) string { return strconv.Itoa(n) + " " + Plural(n, thing) }

// Plural is the word for n things.
func Plural(n int, thing string) string {
	if n == 1 {
		return thing
	}
	return thing + "s"
}

// Codes of ECMA-48, Select Graphic Rendition. The terminal's user chooses what the colors look like.
const (
	bold   = "1"
	dim    = "2"
	red    = "31"
	green  = "32"
	yellow = "33"
)

// colors of states. Those that are not listed need no attention.
var colors = colorsOf(map[string]string{
	green: "active done verified delivered up yes ready sampled moved create",
	red:   "error failed partial rolled_back lost dead gone missing suspended delete replace",
	yellow: "requested building build updating resizing rebooting reboot hard_reboot deleting running pending due " +
		"unknown " +
		"rebuild rebuilt creating degraded suspect migrating confirming skipped update",
	dim: "stopped shutoff shelved shelved_offloaded deleted expired paused suspended cancelled none",
})

func colorsOf(states map[string]string) map[string]string {
	colors := map[string]string{}
	for color, names := range states {
		for name := range strings.FieldsSeq(names) {
			colors[name] = color
		}
	}
	return colors
}

// Paint colors a state by its name, and cleans it.
func Paint(on bool, state string) string {
	state = Clean(state)
	code, ok := colors[strings.ToLower(state)]
	switch {
	case ok:
		return style(on, code, state)
	case len(state) == 3 && state >= "500" && state <= "599": // an HTTP status
		return style(on, red, state)
	case len(state) == 3 && state >= "400" && state <= "499":
		return style(on, yellow, state)
	}
	return state
}

// Bold is for headings.
func Bold(on bool, text string) string { return style(on, bold, Clean(text)) }

// Removed is for a line that a change removes, and Added for one that it adds.
func Removed(on bool, text string) string { return style(on, red, Clean(text)) }

// Added is the other one.
func Added(on bool, text string) string { return style(on, green, Clean(text)) }

// Dim is for what matters less.
func Dim(on bool, text string) string { return style(on, dim, Clean(text)) }

func style(on bool, code, text string) string {
	if !on || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}
