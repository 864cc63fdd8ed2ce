package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/client-go/util/jsonpath"
)

// Formats that have a template behind a =, as of kubectl.
const (
	jsonPath      = "jsonpath"
	customColumns = "custom-columns"
)

// Templates are what -o takes besides Formats, each with its template.
var Templates = []string{jsonPath + "={.PATH}", customColumns + "=TITLE:.PATH,..."}

// template is what to print of JSON: a text, or columns with titles.
type template struct {
	titles []string
	paths  []*jsonpath.JSONPath
}

// SetFormat sets the format that the user chooses.
func (p *Printer) SetFormat(text string) (err error) {
	name, spec, hasSpec := strings.Cut(text, "=")
	switch {
	case slices.Contains(Formats, text):
	case name == jsonPath && hasSpec:
		p.template, err = textTemplate(spec)
	case name == customColumns && hasSpec:
		p.template, err = columnTemplate(spec)
	default:
		return fmt.Errorf("must be one of %s", strings.Join(slices.Concat(Formats, Templates), ", "))
	}
	p.Format = name
	return err
}

// hasTemplate reports whether the format prints what a template chooses.
func (p *Printer) hasTemplate() bool { return p.Format == jsonPath || p.Format == customColumns }

// textTemplate is a template of kubectl's jsonpath. Its braces may be left out around a single path.
func textTemplate(spec string) (template, error) {
	if !strings.Contains(spec, "{") {
		spec = "{" + spec + "}"
	}
	path := jsonpath.New("-o").AllowMissingKeys(true)
	if err := path.Parse(spec); err != nil {
		return template{}, fmt.Errorf("jsonpath: %w", err)
	}
	return template{paths: []*jsonpath.JSONPath{path}}, nil
}

// columnTemplate has a column for each TITLE:PATH.
func columnTemplate(spec string) (all template, err error) {
	for column := range strings.SplitSeq(spec, ",") {
		title, path, found := strings.Cut(column, ":")
		if !found || title == "" || path == "" {
			return all, fmt.Errorf("custom-columns: %q must be TITLE:.PATH, such as NAME:.name", column)
		}
		one, err := textTemplate(path)
		if err != nil {
			return all, err
		}
		all.titles, all.paths = append(all.titles, title), append(all.paths, one.paths...)
	}
	return all, nil
}

// apply prints what the template chooses of a JSON text. A list is the root of a jsonpath, and its entries are the rows
// of columns.
func (p *Printer) apply(text []byte) error {
	var root any
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&root); err != nil {
		return err
	}
	root = plainNumbers(root)
	if p.Format == jsonPath {
		found, err := evaluate(p.template.paths[0], root)
		if err == nil {
			_, err = fmt.Fprint(p.Out, found)
		}
		return err
	}
	rows, isList := root.([]any)
	if !isList {
		rows = []any{root}
	}
	g := grid{head: p.template.titles, isState: make([]bool, len(p.template.titles)), noHead: p.NoHeaders}
	p.used.noHeaders = true
	for _, row := range rows {
		cells := make([]string, len(p.template.paths))
		for n, path := range p.template.paths {
			found, err := evaluate(path, row)
			if err != nil && !strings.Contains(err.Error(), "array index out of bounds") { // else nothing is there
				return err
			}
			cells[n] = found
		}
		g.rows = append(g.rows, cells)
	}
	return g.write(p.Out)
}

// evaluate is the text that a path leads to, without characters that could command a terminal.
func evaluate(path *jsonpath.JSONPath, root any) (string, error) {
	var text bytes.Buffer
	if err := path.Execute(&text, root); err != nil {
		return "", fmt.Errorf("jsonpath: %w", err)
	}
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return r
		}
		return cleanRune(r)
	}, text.String()), nil
}

// plainNumbers gives whole numbers as such: a jsonpath compares and prints them.
func plainNumbers(value any) any {
	switch value := value.(type) {
	case json.Number:
		if whole, err := value.Int64(); err == nil {
			return whole
		}
		number, _ := value.Float64()
		return number
	case []any:
		for n := range value {
			value[n] = plainNumbers(value[n])
		}
	case map[string]any:
		for key := range value {
			value[key] = plainNumbers(value[key])
		}
	}
	return value
}
