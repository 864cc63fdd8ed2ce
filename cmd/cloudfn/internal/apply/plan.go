package apply

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/documents"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/managed"
)

// source is what apply and diff read.
type source struct {
	files   []string
	isPrune bool
	labels  []string // KEY=VALUE, of what --prune may delete
}

func (s *source) flags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringArrayVarP(&s.files, "file", "f", nil, "a file or a folder of documents (- for stdin); may be repeated")
	flags.BoolVar(&s.isPrune, "prune", false, "delete what has the label of --label and is in no document")
	flags.StringSliceVarP(&s.labels, "label", "l", nil, "the label of what --prune may delete: KEY=VALUE")
	cli.Choices(cmd, "label")
	_ = cmd.MarkFlagRequired("file")
}

// step is a change, and the document that declares it; what is deleted has none.
type step struct {
	managed.Change

	document documents.Document
}

// isDeletion reports whether no document declares it any more.
func (s step) isDeletion() bool { return s.document.Kind == "" }

// plan reads the documents, and asks for each what it would change. Nothing is changed when one of them is wrong.
func (s *source) plan(ctx context.Context, a *cli.App) ([]step, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	all, err := documents.Read(s.files, a.In)
	if err != nil {
		return nil, err
	}
	documents.Sort(all)
	steps := make([]step, 0, len(all))
	var wrong []error
	flavors := map[string]documents.Document{}
	for _, d := range all {
		change, err := managed.Plan(ctx, a, withFlavor(d, flavors))
		if err == nil {
			err = missingIn(change, all)
			change.Missing = nil
		}
		if api.IsTransient(err) || ctx.Err() != nil {
			return nil, err
		}
		if err != nil {
			wrong = append(wrong, d.Source.Wrap(err))
			continue
		}
		if d.IsFlavor() && change.Action != managed.ActionNone {
			flavors[d.Name] = d
		}
		steps = append(steps, step{change, d})
	}
	if err := s.warn(a, all, wrong); err != nil || !s.isPrune {
		return steps, err
	}
	deletions, err := s.deletions(ctx, a, all)
	return append(steps, deletions...), err
}

// missingIn is the first name in a change that stands for nothing, and that no document declares.
func missingIn(c managed.Change, all []documents.Document) error {
	for _, m := range c.Missing {
		isBeside := func(d documents.Document) bool { return d.Kind == cli.Value(m.Kind) && d.Name == m.Name }
		if !slices.ContainsFunc(all, isBeside) {
			return exit.Usagef("%s: %s", m.Field, m.Detail)
		}
	}
	return nil
}

func (s *source) check() error {
	switch {
	case s.isPrune && len(s.labels) == 0:
		return exit.Usagef("--prune needs --label KEY=VALUE: it deletes what has the label and is in no document")
	case !s.isPrune && len(s.labels) > 0:
		return exit.Usagef("--label requires --prune: it says what --prune may delete")
	}
	for _, label := range s.labels {
		if key, value, ok := strings.Cut(label, "="); !ok || key == "" || value == "" {
			return exit.Usagef("--label is %q: it must be KEY=VALUE", label)
		}
	}
	return nil
}

// warn says which documents are wrong, and which --prune will never find.
func (s *source) warn(a *cli.App, all []documents.Document, wrong []error) error {
	switch {
	case len(wrong) == 1:
		return fmt.Errorf("%w. Nothing was changed", wrong[0])
	case len(wrong) > 1:
		for _, err := range wrong {
			a.Notef("%s", err)
		}
		const format = "%d of %d documents are wrong, and nothing was changed"
		return exit.Errorf(a.Code(wrong[0]), format, len(wrong), len(all))
	}
	for _, d := range all {
		if s.isPrune && !d.IsFlavor() && !s.selects(d.Labels()) {
			a.Notef("warning: %s: %s lacks the label %s, so that --prune will never delete it", d.Source, d.ID(),
				strings.Join(s.labels, ","))
		}
	}
	return nil
}

func (s *source) selects(labels map[string]string) bool {
	return !slices.ContainsFunc(s.labels, func(label string) bool {
		key, value, _ := strings.Cut(label, "=")
		return labels[key] != value
	})
}

// withFlavor puts the spec of a flavor that cloudfn does not have yet into a document that begins with it.
func withFlavor(d documents.Document, flavors map[string]documents.Document) documents.Document {
	name, _ := d.Fields["flavor"].(string)
	flavor, isNew := flavors[name]
	if !isNew || d.IsFlavor() {
		return d
	}
	spec := maps.Clone(flavor.Spec())
	maps.Copy(spec, d.Spec())
	d.Fields = maps.Clone(d.Fields)
	delete(d.Fields, "flavor")
	d.Fields["spec"] = spec
	return d
}

// deletions are what has the labels and is in no document: what needs others comes before them.
func (s *source) deletions(ctx context.Context, a *cli.App, all []documents.Document) ([]step, error) {
	declared := map[string]bool{}
	for _, d := range all {
		declared[d.ID()] = true
	}
	query := url.Values{"label": {strings.Join(s.labels, ",")}}
	found, err := api.List[api.Managed]{Path: managed.Noun.Path, Key: managed.Noun.Key, Query: query}.Read(ctx, a.API())
	if err != nil {
		return nil, err
	}
	var gone []documents.Document
	for _, item := range found {
		m := item.Value
		if id := m.Kind + "/" + m.Name; declared[id] || m.Status == "deleting" || !s.selects(m.Labels) {
			continue
		}
		d, err := documents.New(m.Kind, item.Raw)
		if err != nil {
			return nil, err
		}
		gone = append(gone, d)
	}
	documents.Sort(gone)
	slices.Reverse(gone)
	var steps []step
	for _, d := range gone {
		change := managed.Change{Kind: d.Kind, Name: d.Name, Action: managed.ActionDelete, Fields: []managed.Field{}}
		for _, field := range slices.Sorted(maps.Keys(d.Spec())) {
			change.Fields = append(change.Fields, managed.Field{Field: "spec." + field, From: d.Spec()[field]})
		}
		steps = append(steps, step{Change: change})
	}
	return steps, nil
}

// changes are those of steps that change something; all of them if the user wants that.
func changes(steps []step, isAll bool) []managed.Change {
	var found []managed.Change
	for _, s := range steps {
		if isAll || s.Action != managed.ActionNone {
			found = append(found, s.Change)
		}
	}
	return found
}
