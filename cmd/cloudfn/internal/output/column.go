package output

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
)

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
	if len(p.Columns) == 0 {
		if p.Format == "wide" {
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
	return t.UTC().Format("2006-01-02 15:04:05")
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
