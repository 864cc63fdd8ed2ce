// Package documents reads and writes declarations of managed resources and their flavors, in YAML.
package documents

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// FlavorKind is the kind of a document that declares a flavor of managed resources.
const FlavorKind = "ResourceFlavor"

// Document declares a managed resource or a flavor.
type Document struct {
	Source Source
	Kind   string
	Name   string
	Fields map[string]any // the other fields, as JSON has them
}

// Source says where a document stands.
type Source struct {
	File   string // "" = no file; - = stdin
	Number int    // of the document in its file, from 1
	Entry  int    // of the document in a list of them, from 1; 0 = it is in none
}

// String implements fmt.Stringer.
func (s Source) String() string {
	text := fmt.Sprintf("%s: document %d", s.File, s.Number)
	if s.File == "-" {
		text = fmt.Sprintf("stdin: document %d", s.Number)
	}
	if s.Entry > 0 {
		text += fmt.Sprintf(", entry %d", s.Entry)
	}
	return text
}

// Wrap says in which document an error is, and keeps its exit code.
func (s Source) Wrap(err error) error {
	if s.File == "" {
		return err
	}
	return fmt.Errorf("%s: %w", s, err)
}

// The fields of documents besides kind, in the order in which they are written. for_kind is the kind of the resources
// that a flavor is for.
var (
	resourceFields = []string{"name", "flavor", "labels", "schedule", "repair", "max_revisions", "spec"}
	flavorFields   = []string{"name", "for_kind", "provider", "description", "spec"}
)

// ID is how a document is called in messages: Volume/data.
func (d Document) ID() string { return d.Kind + "/" + d.Name }

// IsFlavor reports whether it declares a flavor.
func (d Document) IsFlavor() bool { return d.Kind == FlavorKind }

// Labels are those of the resource.
func (d Document) Labels() map[string]string {
	labels := map[string]string{}
	declared, _ := d.Fields["labels"].(map[string]any)
	for key, value := range declared {
		labels[key], _ = value.(string)
	}
	return labels
}

// Spec is what is declared.
func (d Document) Spec() map[string]any {
	spec, _ := d.Fields["spec"].(map[string]any)
	return spec
}

// Request is the body of the request that declares it.
func (d Document) Request() map[string]any {
	body := map[string]any{}
	for field, value := range d.Fields {
		if field == "for_kind" {
			field = "kind"
		}
		body[field] = value
	}
	return body
}

// Sort puts documents into the order in which they can be declared: flavors first, then each kind after those that it
// may need.
func Sort(all []Document) {
	slices.SortStableFunc(all, func(a, b Document) int { return cmp.Compare(rank(a.Kind), rank(b.Kind)) })
}

func rank(kind string) int {
	if kind == FlavorKind {
		return -1
	}
	return slices.Index(domain.Kinds(), domain.Kind(kind))
}

// check holds the fields of a document that are needed here. cloudfn checks all others.
func (d Document) check() error {
	known := resourceFields
	switch kind := domain.Kind(d.Kind); {
	case d.IsFlavor():
		known = flavorFields
	case d.Kind == "":
		return exit.Usagef("kind is missing: it is one of %s", strings.Join(kinds(), ", "))
	case slices.Contains(domain.UnsupportedKinds(), kind):
		return exit.Usagef("kind: %s is not supported: OpenStack has no service for it", d.Kind)
	case !slices.Contains(domain.Kinds(), kind):
		return exit.Usagef("kind: unknown kind %q; expected one of %s", d.Kind, strings.Join(kinds(), ", "))
	}
	for field := range d.Fields {
		if !slices.Contains(known[1:], field) {
			return exit.Usagef("%s: unknown field of a %s; %s", field, d.Kind,
				apperr.Suggestion(field, slices.Concat([]string{"kind"}, known)))
		}
	}
	if d.Name == "" {
		return exit.Usagef("name is missing")
	}
	if _, ok := d.Fields["spec"].(map[string]any); !ok && d.Fields["spec"] != nil {
		return exit.Usagef("spec: must be a mapping of fields")
	}
	return checkLabels(d.Fields["labels"])
}

func checkLabels(labels any) error {
	if labels == nil {
		return nil
	}
	pairs, ok := labels.(map[string]any)
	if !ok {
		return exit.Usagef("labels: must be a mapping of texts")
	}
	for key, value := range pairs {
		if _, ok := value.(string); !ok {
			return exit.Usagef("labels.%s: must be a text: put %v in quotes", key, value)
		}
	}
	return nil
}

func kinds() []string {
	all := []string{FlavorKind}
	for _, kind := range domain.Kinds() {
		all = append(all, string(kind))
	}
	return all
}

// fileFields are the fields of a spec that name a file, each with the field that the file is the value of.
var fileFields = map[string]string{
	"user_data_file": "user_data", "payload_file": "payload", "content_file": "content",
}

// readFiles puts the files that a spec names in their fields: secrets stay out of the documents, which are in Git.
func readFiles(spec map[string]any, folder string) error {
	for field, into := range fileFields {
		given, isGiven := spec[field]
		if !isGiven {
			continue
		}
		name, ok := given.(string)
		if !ok || name == "" {
			return exit.Usagef("spec.%s: must be the name of a file", field)
		}
		if spec[into] != nil {
			return exit.Usagef("spec.%s: give either it or spec.%s", field, into)
		}
		if !filepath.IsAbs(name) {
			name = filepath.Join(folder, name)
		}
		text, err := os.ReadFile(name) //nolint:gosec // the user names it
		if err != nil {
			return exit.Usagef("spec.%s: %w", field, err)
		}
		delete(spec, field)
		if err = SetFile(spec, into, text); err != nil {
			return exit.Usagef("spec.%s: %s %w", field, name, err)
		}
	}
	return nil
}

// SetFile sets a field of a spec to what a file holds. The content of an image and user_data may be any bytes, which
// are in base64. Other fields must be text: JSON would replace other bytes.
func SetFile(spec map[string]any, field string, text []byte) error {
	isText := utf8.Valid(text) && bytes.IndexByte(text, 0) < 0 // the API takes no NUL in a text
	switch {
	case field == "content":
		spec[field] = base64.StdEncoding.EncodeToString(text)
	case isText:
		spec[field] = string(text)
	case field == "user_data":
		spec["user_data_base64"] = base64.StdEncoding.EncodeToString(text)
	default:
		return errors.New("is not UTF-8 text")
	}
	return nil
}

// Read reads the documents of files and folders; - is stdin. Of a folder it reads the files that end in .yaml, .yml or
// .json, by their names, and none of its folders.
func Read(names []string, stdin io.Reader) ([]Document, error) {
	var all []Document
	for _, name := range names {
		files, err := expand(name)
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			found, err := readFile(file, stdin)
			if err != nil {
				return nil, err
			}
			all = append(all, found...)
		}
	}
	if len(all) == 0 {
		return nil, exit.Usagef("there is no document in %s", strings.Join(names, ", "))
	}
	return all, checkUnique(all)
}

// expand gives the files of a folder; of anything else the name itself.
func expand(name string) ([]string, error) {
	if name == "-" {
		return []string{name}, nil
	}
	info, err := os.Stat(name)
	if err != nil {
		return nil, exit.Usagef("%w", err)
	}
	if !info.IsDir() {
		return []string{name}, nil
	}
	entries, err := os.ReadDir(name) // by their names
	if err != nil {
		return nil, exit.Usagef("%w", err)
	}
	var files []string
	for _, entry := range entries {
		suffix := filepath.Ext(entry.Name())
		isHidden := strings.HasPrefix(entry.Name(), ".")
		if !entry.IsDir() && !isHidden && slices.Contains([]string{".yaml", ".yml", ".json"}, suffix) {
			files = append(files, filepath.Join(name, entry.Name()))
		}
	}
	return files, nil
}

func readFile(name string, stdin io.Reader) ([]Document, error) {
	if name == "-" {
		text, err := io.ReadAll(stdin)
		if err != nil {
			return nil, exit.Usagef("stdin: %w", err)
		}
		return Decode(text, name, "")
	}
	text, err := os.ReadFile(name) //nolint:gosec // the user names it
	if err != nil {
		return nil, exit.Usagef("%w", err)
	}
	return Decode(text, name, filepath.Dir(name))
}

// Decode reads the documents of a text. Files that they name are in the folder.
func Decode(text []byte, name, folder string) ([]Document, error) {
	var all []Document
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	for number := 1; ; number++ {
		source := Source{File: name, Number: number}
		var node yaml.Node
		err := decoder.Decode(&node)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, source.Wrap(unreadable(text, err))
		}
		if isEmpty(&node) {
			continue
		}
		found, err := entries(node.Content[0], source, folder)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
}

// entries are the documents of a node: one, or a list of them.
func entries(node *yaml.Node, source Source, folder string) ([]Document, error) {
	nodes := []*yaml.Node{node}
	if node.Kind == yaml.SequenceNode {
		nodes = node.Content
	}
	all := make([]Document, len(nodes))
	for n, one := range nodes {
		if node.Kind == yaml.SequenceNode {
			source.Entry = n + 1
		}
		d, err := decode(one, folder)
		if err != nil {
			return nil, source.Wrap(err)
		}
		d.Source = source
		all[n] = d
	}
	return all, nil
}

func isEmpty(node *yaml.Node) bool {
	return len(node.Content) == 0 || node.Content[0].Kind == yaml.ScalarNode && node.Content[0].ShortTag() == "!!null"
}

func decode(node *yaml.Node, folder string) (d Document, err error) {
	keepTexts(node)
	if err := checkKeys(node); err != nil {
		return d, err
	}
	var read any
	if err := node.Decode(&read); err != nil {
		return d, invalid(err)
	}
	fields, ok := read.(map[string]any)
	if !ok {
		return d, exit.Usagef("line %d, column %d: a document must be a mapping of fields", node.Line, node.Column)
	}
	d.Fields = fields
	for field, into := range map[string]*string{"kind": &d.Kind, "name": &d.Name} {
		if *into, ok = fields[field].(string); !ok && fields[field] != nil {
			return d, exit.Usagef("%s: must be a text", field)
		}
		delete(fields, field)
	}
	if err := d.check(); err != nil {
		return d, err
	}
	return d, readFiles(d.Spec(), folder)
}

// keepTexts keeps what YAML takes for a time as a text, because JSON has no times, and every key, because JSON has no
// other keys.
func keepTexts(node *yaml.Node) {
	if node.Kind == yaml.ScalarNode && node.ShortTag() == "!!timestamp" {
		node.Tag = "!!str"
	}
	for i, inner := range node.Content {
		isKey := node.Kind == yaml.MappingNode && i%2 == 0 && inner.Kind == yaml.ScalarNode
		if isKey && inner.ShortTag() != "!!merge" {
			inner.Tag = "!!str"
		}
		keepTexts(inner)
	}
}

// checkKeys finds a key that a mapping has twice.
func checkKeys(node *yaml.Node) error {
	lines := map[string]int{}
	for i, inner := range node.Content {
		if node.Kind == yaml.MappingNode && i%2 == 0 {
			if first, isTwice := lines[inner.Value]; isTwice && inner.Kind == yaml.ScalarNode {
				return exit.Usagef("line %d, column %d: the key %q is in line %d already", inner.Line, inner.Column,
					inner.Value, first)
			}
			lines[inner.Value] = inner.Line
		}
		if err := checkKeys(inner); err != nil {
			return err
		}
	}
	return nil
}

// invalid is an error of the YAML reader, without its name.
func invalid(err error) error { return exit.Usagef("%s", message(err)) }

func message(err error) string {
	return strings.TrimPrefix(strings.TrimPrefix(err.Error(), "yaml: "), "unmarshal errors:\n  ")
}

// unreadable is an error of a text that does not parse, with its line and column. The reader has no columns, and no
// line of an error in the first one: the error is at the end of the shortest beginning of the text that has it.
func unreadable(text []byte, err error) error {
	end := sort.Search(len(text), func(n int) bool {
		found := parse(text[:n])
		return found != nil && found.Error() == err.Error()
	})
	before := text[:max(end-1, 0)]
	line := before[bytes.LastIndexByte(before, '\n')+1:]
	_, what, hasLine := strings.Cut(message(err), ": ")
	if !hasLine || !strings.HasPrefix(message(err), "line ") {
		what = message(err)
	}
	return exit.Usagef("line %d, column %d: %s", bytes.Count(before, []byte("\n"))+1, utf8.RuneCount(line)+1, what)
}

// parse is why a text of several documents does not parse.
func parse(text []byte) error {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var node yaml.Node
		if err := decoder.Decode(&node); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// checkUnique finds things that are declared twice.
func checkUnique(all []Document) error {
	first := map[string]Source{}
	for _, d := range all {
		if other, isTwice := first[d.ID()]; isTwice {
			return d.Source.Wrap(exit.Usagef("name: %s is declared in %s as well", d.ID(), other))
		}
		first[d.ID()] = d.Source
	}
	return nil
}

// Value reads a value that is given alone, such as 8 or [a, b].
func Value(text string) (any, error) {
	var node yaml.Node
	if err := yaml.Unmarshal([]byte(text), &node); err != nil {
		return nil, invalid(err)
	}
	if len(node.Content) == 0 {
		return "", nil
	}
	keepTexts(&node)
	var value any
	if err := node.Decode(&value); err != nil {
		return nil, fmt.Errorf("%w", invalid(err))
	}
	return value, nil
}
