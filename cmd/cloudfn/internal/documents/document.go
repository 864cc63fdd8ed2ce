// Package documents reads and writes declarations of managed resources and their flavors, in YAML.
package documents

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

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
