package managed

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/documents"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
	"github.com/cloudfn/cloudfn/shared/domain"
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

// Plan gets what a declaration would change.
func Plan(ctx context.Context, a *cli.App, d documents.Document) (Change, error) {
	change := Change{Kind: d.Kind, Name: d.Name, Action: ActionNone, Fields: []Field{}}
	if d.IsFlavor() {
		return change, change.compare(ctx, a, d)
	}
	planned, err := api.Send[api.Managed](ctx, a.API(), http.MethodPut, path(d)+"?dry_run=true", d.Request())
	if err != nil {
		return change, err
	}
	for _, step := range domain.Deref(planned.Value.Plan) {
		change.add(step)
	}
	if change.ETag = planned.ETag; change.Action == ActionCreate {
		change.ETag = api.Absent
	}
	return change, nil
}

// Deletion is the end of what a document declares, with its members.
func Deletion(d documents.Document, members []api.Member) Change {
	fields := differences(documents.Document{Fields: map[string]any{"spec": d.Spec()}}, documents.Document{})
	change := Change{Kind: d.Kind, Name: d.Name, Action: ActionDelete, Fields: fields}
	if n := len(members); n > 0 {
		change.Note = fmt.Sprintf("deletes %s: %s", output.Count(n, "object"), objects(members))
	}
	return change
}

// named is how many objects a note names.
const named = 5

// objects are the names of members, as far as a note has room for them.
func objects(members []api.Member) string {
	var names []string
	for _, m := range members[:min(len(members), named)] {
		names = append(names, m.Name)
	}
	if rest := len(members) - named; rest > 0 {
		return strings.Join(names, ", ") + fmt.Sprintf(" and %d more", rest)
	}
	return strings.Join(names, ", ")
}

// compare compares a flavor as it would be with the one that is there: its dry run answers what it would be.
func (c *Change) compare(ctx context.Context, a *cli.App, d documents.Document) error {
	planned, err := api.Send[api.ResourceFlavor](ctx, a.API(), http.MethodPut, path(d)+"?dry_run=true", d.Request())
	if err != nil {
		return err
	}
	stored, err := api.Get[api.ResourceFlavor](ctx, a.API(), path(d), nil)
	switch c.Action, c.ETag = ActionUpdate, stored.ETag; {
	case api.HasStatus(err, http.StatusNotFound):
		c.Action, c.ETag, stored.Raw = ActionCreate, api.Absent, []byte("{}")
	case err != nil:
		return err
	}
	before, err := documents.New(documents.FlavorKind, stored.Raw)
	if err != nil {
		return err
	}
	after, err := documents.New(documents.FlavorKind, planned.Raw)
	if c.Fields = differences(before, after); c.Action == ActionUpdate && len(c.Fields) == 0 {
		c.Action = ActionNone
	}
	return err
}

// differences are those between the fields of two documents, and between those of their specs.
func differences(before, after documents.Document) []Field {
	all := []Field{}
	for _, part := range []struct {
		prefix   string
		from, to map[string]any
	}{{"", before.Fields, after.Fields}, {"spec.", before.Spec(), after.Spec()}} {
		names := slices.Concat(slices.Collect(maps.Keys(part.from)), slices.Collect(maps.Keys(part.to)))
		slices.Sort(names)
		for _, name := range slices.Compact(names) {
			f := Field{Field: part.prefix + name, From: part.from[name], To: part.to[name]}
			if f.Field != "spec" && !reflect.DeepEqual(f.From, f.To) {
				all = append(all, f)
			}
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
	c.Missing = append(c.Missing, domain.Deref(step.Missing)...)
	if note := domain.Deref(step.Note); note != "" {
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

func diff(a *cli.App) *cobra.Command {
	cmd := one(a, "diff", "[FROM [TO]]", "Compare revisions of a managed resource, or one with what is real",
		"diffManaged", 2,
		func(cmd *cobra.Command, r Reference, rest []string) error {
			if err := a.TextOnly(cmd, "table", "wide", "json", "yaml"); err != nil {
				return err
			}
			query := url.Values{}
			for n, text := range rest {
				if _, err := number(text); err != nil {
					return err
				}
				query.Set([]string{"from", "to"}[n], text)
			}
			found, err := api.Get[api.ManagedDiff](cmd.Context(), a.API(), r.URL("diff"), query)
			if err == nil {
				err = printDiff(cmd.Context(), a, r, found)
			}
			return DiffResult(a, err, err == nil && len(found.Value.Differences) > 0,
				output.Count(len(found.Value.Differences), "difference"))
		})
	cmd.Long = `Compare two revisions of a managed resource, field by field. Without TO a revision is compared with what
is real: with what its servers or other objects have now, others' changes included. Without FROM it is the declared
revision.

Exit codes: 0 without a difference, 1 with one, and more than 1 after an error.`
	cmd.Example = "  cloudfn managed diff VirtualMachineDeployment web\n" +
		"  cloudfn managed diff VirtualMachineDeployment web 2 3"
	return cmd
}

// DiffResult is how a command ends that shows differences: as diff does, with 1 only when it has shown some.
func DiffResult(a *cli.App, err error, differs bool, summary string) error {
	switch {
	case err != nil && a.Code(err) == exit.Failed:
		return exit.Usagef("%w", err)
	case err == nil && differs:
		return exit.Failedf("%s", summary)
	}
	return err
}

func printDiff(ctx context.Context, a *cli.App, r Reference, found api.Item[api.ManagedDiff]) error {
	if a.Print.IsData() {
		return output.One(&a.Print, found, output.Table[api.ManagedDiff]{})
	}
	diff := found.Value
	other := "what is real"
	if to := domain.Deref(diff.To); to != 0 {
		other = "revision " + strconv.Itoa(to)
	}
	names, err := memberNames(ctx, a, r, diff)
	if err != nil {
		return err
	}
	var text strings.Builder
	last := "none"
	for _, d := range diff.Differences {
		member := domain.Deref(d.Member)
		if member != last {
			title := fmt.Sprintf("%s: revision %d -> %s", r, diff.From, other)
			if member != "" {
				title += ", " + cmp.Or(names[member], member)
			}
			fmt.Fprintln(&text, output.Bold(a.Print.Color, title))
			last = member
		}
		writeField(&text, a.Print.Color, Field{Field: d.Path, From: d.From, To: d.To})
	}
	_, err = fmt.Fprint(a.Out, text.String())
	return err
}

// memberNames are the names of a resource's objects, by the ids of members. A server and the one that replaces it have
// the same name: these have their ids, too.
func memberNames(ctx context.Context, a *cli.App, r Reference, diff api.ManagedDiff) (map[string]string, error) {
	count, names := map[string]int{}, map[string]string{}
	ofMember := func(d api.ManagedDifference) bool { return domain.Deref(d.Member) != "" }
	if !slices.ContainsFunc(diff.Differences, ofMember) {
		return names, nil
	}
	found, err := api.Get[api.Managed](ctx, a.API(), r.URL(), nil)
	if err != nil {
		return nil, err
	}
	for _, m := range found.Value.Members {
		count[m.Name]++
	}
	for _, m := range found.Value.Members {
		if names[m.ID] = m.Name; count[m.Name] > 1 || a.Print.Format == "wide" {
			names[m.ID] += " (" + m.ID + ")"
		}
	}
	return names, nil
}

// ShowChanges prints what declarations change: for people as lines that are removed and added.
func ShowChanges(a *cli.App, all []Change) error {
	if !a.Print.IsTable() {
		return PrintChanges(a, all)
	}
	var text strings.Builder
	for _, c := range all {
		fmt.Fprintln(&text, output.Bold(a.Print.Color, fmt.Sprintf("%s/%s (%s)", c.Kind, c.Name, c.Action)))
		if c.Note != "" {
			fmt.Fprintln(&text, "  "+output.Clean(c.Note))
		}
		for _, f := range c.Fields {
			writeField(&text, a.Print.Color, f)
		}
	}
	_, err := fmt.Fprint(a.Out, text.String())
	return err
}

// writeField writes a field as lines that are removed and added.
func writeField(text *strings.Builder, color bool, f Field) {
	if f.From == nil && f.To == nil {
		fmt.Fprintln(text, output.Added(color, "+ "+f.String()))
	}
	for _, line := range lines(f.Field, f.From) {
		fmt.Fprintln(text, output.Removed(color, "- "+line))
	}
	for _, line := range lines(f.Field, f.To) {
		fmt.Fprintln(text, output.Added(color, "+ "+line))
	}
}

// lines are those of a field: one, or for a text of several lines each of them.
func lines(field string, value any) []string {
	if value == nil {
		return nil
	}
	text := Text(value)
	if !strings.Contains(text, "\n") {
		return []string{field + ": " + text}
	}
	all := []string{field + ": |"}
	for line := range strings.Lines(text) {
		all = append(all, "    "+strings.TrimRight(line, "\n"))
	}
	return all
}
