package managed

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/documents"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
)

// The actions of a plan, each more than those before it.
const (
	ActionNone    = "none"
	ActionUpdate  = "update"
	ActionCreate  = "create"
	ActionReplace = "replace"
	ActionDelete  = "delete"
)

var actions = []string{ActionNone, ActionUpdate, ActionCreate, ActionReplace, ActionDelete}

// Change is what happens to a resource or a flavor, by its kind and name.
type Change struct {
	Kind   string  `json:"kind"`
	Name   string  `json:"name"`
	Action string  `json:"action"`
	Fields []Field `json:"fields"`
	Note   string  `json:"note,omitempty"` // what of it waits for the user
	ETag   string  `json:"-"`              // of what it changes

	// Missing is what it names and nothing has.
	Missing []api.PlanMissing `json:"missing,omitempty"`
}

// Field is one that changes.
type Field struct {
	Field string `json:"field"`
	From  any    `json:"from"`
	To    any    `json:"to"`
}

// Plan asks what a declaration would change.
func Plan(ctx context.Context, a *cli.App, d documents.Document) (Change, error) {
	change := Change{Kind: d.Kind, Name: d.Name, Action: ActionNone, Fields: []Field{}}
	if d.IsFlavor() {
		return change, change.compare(ctx, a, d)
	}
	planned, err := api.Send[api.Managed](ctx, a.API(), http.MethodPut, path(d)+"?dry_run=true", d.Request())
	if err != nil {
		return change, err
	}
	for _, step := range cli.Value(planned.Value.Plan) {
		change.add(step)
	}
	if change.ETag = planned.ETag; change.Action == ActionCreate {
		change.ETag = api.Absent
	}
	return change, nil
}

// compare compares a flavor as it would be with the one that is there: its dry run answers what it would be.
func (c *Change) compare(ctx context.Context, a *cli.App, d documents.Document) error {
	planned, err := api.Send[api.ResourceFlavor](ctx, a.API(), http.MethodPut, path(d)+"?dry_run=true", d.Request())
	if err != nil {
		return err
	}
	c.Action = ActionUpdate
	stored, err := api.Get[api.ResourceFlavor](ctx, a.API(), path(d), nil)
	c.ETag = stored.ETag
	if api.HasStatus(err, http.StatusNotFound) {
		c.Action, c.ETag, err = ActionCreate, api.Absent, nil
		stored.Raw = []byte("{}")
	}
	if err != nil {
		return err
	}
	before, err := fieldsOf(stored.Raw)
	if err != nil {
		return err
	}
	after, err := fieldsOf(planned.Raw)
	if err != nil {
		return err
	}
	c.Fields = differences(before, after)
	if c.Action == ActionUpdate && len(c.Fields) == 0 {
		c.Action = ActionNone
	}
	return nil
}

// fieldsOf are the fields that a flavor declares, and those of its spec.
func fieldsOf(flavor json.RawMessage) (map[string]any, error) {
	d, err := documents.New(documents.FlavorKind, flavor)
	all := map[string]any{}
	for field, value := range d.Fields {
		if field != "spec" {
			all[field] = value
		}
	}
	for field, value := range d.Spec() {
		all["spec."+field] = value
	}
	return all, err
}

func differences(before, after map[string]any) []Field {
	all := []Field{}
	names := slices.Concat(slices.Collect(maps.Keys(before)), slices.Collect(maps.Keys(after)))
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if !reflect.DeepEqual(before[name], after[name]) {
			all = append(all, Field{Field: name, From: before[name], To: after[name]})
		}
	}
	return all
}

// path is that of what a document declares.
func path(d documents.Document) string {
	if d.IsFlavor() {
		return "/v1/flavors/" + url.PathEscape(d.Name)
	}
	return Reference{d.Kind, d.Name}.URL()
}

// add adds a step of a plan. The change's action is that of its largest step.
func (c *Change) add(step api.ManagedPlan) {
	if slices.Index(actions, string(step.Action)) > slices.Index(actions, c.Action) {
		c.Action = string(step.Action)
	}
	for _, f := range step.Fields {
		c.Fields = append(c.Fields, Field{Field: f.Field, From: f.From, To: f.To})
	}
	c.Missing = append(c.Missing, cli.Value(step.Missing)...)
	if note := cli.Value(step.Note); note != "" {
		c.Note = note
	}
}

// String lists the fields in one line.
func (f Field) String() string {
	switch {
	case f.From == nil && f.To == nil:
		return f.Field + ": (secret)"
	case f.From == nil:
		return f.Field + ": " + short(f.To)
	case f.To == nil:
		return f.Field + ": " + short(f.From) + " -> (none)"
	}
	return f.Field + ": " + short(f.From) + " -> " + short(f.To)
}

// longest is how much of a value a line shows, in characters. diff shows all of it.
const longest = 60

// short is a value in one short line.
func short(value any) string {
	text := Text(value)
	if strings.ContainsFunc(text, unicode.IsControl) {
		text = strconv.Quote(text)
	}
	if all := []rune(text); len(all) > longest {
		return string(all[:longest]) + "..."
	}
	return text
}

func (c Change) fields() string {
	texts := make([]string, len(c.Fields))
	for n, f := range c.Fields {
		texts[n] = f.String()
	}
	return strings.Join(texts, ", ")
}

var changeTable = output.Table[Change]{
	Columns: []string{"ACTION*", "KIND", "NAME", "FIELDS"},
	Name:    func(c Change) string { return c.Kind + "/" + c.Name },
	Texts:   map[string]func(Change) string{"FIELDS": Change.fields},
}

// PrintChanges prints what would happen, and notes what waits for the user.
func PrintChanges(a *cli.App, all []Change) error {
	for _, c := range all {
		if c.Note != "" {
			a.Notef("%s/%s: %s", c.Kind, c.Name, c.Note)
		}
		for _, m := range c.Missing {
			a.Notef("%s/%s: %s: %s", c.Kind, c.Name, m.Field, m.Detail)
		}
	}
	return output.Values(&a.Print, all, changeTable)
}
