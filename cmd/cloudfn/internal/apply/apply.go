// Package apply holds the commands for files of declarations: apply, diff and get.
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
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// applier is one run of apply.
type applier struct {
	*cli.App
	source

	wait    cli.Wait
	isDry   bool
	isSure  bool // there is no question
	results []result
	targets []*managed.Target
}

// result is what became of a step.
type result struct {
	Kind     string `json:"kind"`
	Name     string `json:"name"`
	Result   string `json:"result"`
	Revision *int   `json:"revision,omitempty"`
	Status   string `json:"status,omitempty"`
}

var resultTable = output.Table[result]{
	Columns: []string{"KIND", "NAME", "RESULT", "REVISION", "STATUS*"},
	Name:    func(r result) string { return r.Kind + "/" + r.Name },
}

// Apply is the command that declares what is in files.
func Apply(a *cli.App) *cobra.Command {
	run := applier{App: a}
	cmd := &cobra.Command{
		Use: "apply --file FILE", Short: "Declare what is in files", Args: cobra.NoArgs,
		Long: `Declare the resources of files, so that cloudfn makes them and keeps them so.

Files hold documents in YAML, with --- between them. Each has kind, name and spec, and may have labels, schedule,
flavor, repair and max_revisions. A document of the kind ResourceFlavor has for_kind and spec, and declares a flavor. Of
a folder the files that end in .yaml, .yml or .json are read. Secrets stay in files of their own: spec.user_data_file,
spec.payload_file and spec.content_file name them.

All documents are checked before anything is changed. At a terminal the changes are shown, and made after a yes,
unless --yes is given. What others change in between is not overwritten: the document is refused. They are declared in
the order in which they need one another. With --prune, what has the label and is in no document is deleted at the
end.`,
		Example: `  cloudfn apply -f servers/ --dry-run
  cloudfn apply -f servers/ --prune -l app=web --wait
  cloudfn get managed -o yaml --label app=web | cloudfn --os-cloud other apply -f -`,
		Annotations:       cli.Calls("putManaged", "putFlavor", "listManaged", "deleteManaged"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return run.run(cmd.Context()) },
	}
	run.flags(cmd)
	cmd.Flags().BoolVar(&run.isDry, "dry-run", false, "only show what would be done")
	cmd.Flags().BoolVarP(&run.isSure, "yes", "y", false, "do not ask before the changes are made")
	run.wait.Flags(cmd, "all are ready, and what is pruned is deleted")
	return cmd
}

func (r *applier) run(ctx context.Context) error {
	steps, err := r.plan(ctx, r.App)
	if err != nil {
		return err
	}
	if r.isDry {
		return managed.PrintChanges(r.App, changes(steps, true))
	}
	if err := r.confirm(ctx, changes(steps, false)); err != nil {
		return err
	}
	failure := r.apply(ctx, steps)
	if failure == nil && r.wait.IsOn && len(r.targets) > 0 {
		failure = r.await(ctx)
	}
	if err := output.Values(&r.Print, r.results, resultTable); err != nil {
		return err
	}
	return failure
}

// confirm shows the changes at a terminal, and confirms that they are to be made.
func (r *applier) confirm(ctx context.Context, all []managed.Change) error {
	if r.isSure || r.Confirm == nil || len(all) == 0 {
		return nil
	}
	shown := *r.App
	shown.Print = output.Printer{Out: r.Err, Format: "table"}
	if err := managed.PrintChanges(&shown, all); err != nil {
		return err
	}
	isWanted, err := r.Confirm(ctx, "Make "+output.Count(len(all), "change")+"?")
	if err == nil && !isWanted {
		err = exit.Failedf("nothing was changed")
	}
	return err
}

// apply declares and deletes. It goes on after a failure, but then deletes nothing.
func (r *applier) apply(ctx context.Context, steps []step) error {
	var failures []error
	for _, s := range steps {
		if s.isDeletion() && len(failures) > 0 {
			continue
		}
		err := r.do(ctx, s)
		if err == nil {
			continue
		}
		err = s.document.Source.Wrap(err)
		if api.IsTransient(err) || ctx.Err() != nil {
			return err
		}
		failures = append(failures, err)
	}
	if len(failures) < 2 {
		return first(failures)
	}
	for _, err := range failures {
		r.Notef("%s", err)
	}
	return exit.Failedf("%d of %d steps failed", len(failures), len(steps))
}

func first(all []error) error {
	if len(all) == 0 {
		return nil
	}
	return all[0]
}

// words are the results of actions.
var words = map[string]string{
	managed.ActionNone: "unchanged", managed.ActionCreate: "created", managed.ActionUpdate: "updated",
	managed.ActionReplace: "updated", managed.ActionDelete: "updated",
}

// do does a step. What is unchanged is declared as well: that renews what is delegated for it.
func (r *applier) do(ctx context.Context, s step) error {
	done := result{Kind: s.Kind, Name: s.Name, Result: words[s.Action]}
	reference := managed.Reference{Kind: s.Kind, Name: s.Name}
	switch {
	case s.isDeletion():
		if err := managed.Delete(ctx, r.App, reference); err != nil {
			return err
		}
		done.Result = "deleted"
		r.targets = append(r.targets, &managed.Target{Reference: reference})
	default:
		m, err := managed.Declare(ctx, r.App, s.document, s.ETag)
		if err != nil {
			return err
		}
		if s.document.IsFlavor() {
			break
		}
		done.Revision, done.Status = &m.Value.Revision, string(m.Value.Status)
		r.targets = append(r.targets, &managed.Target{Reference: reference, Revision: m.Value.Revision})
	}
	r.results = append(r.results, done)
	return nil
}

// await waits, and brings the statuses of the results up to date.
func (r *applier) await(ctx context.Context) error {
	r.Notef("Waiting for %s, for at most %s.", output.Count(len(r.targets), "resource"), r.wait.Limit)
	failure := managed.Await(ctx, r.App, r.wait, r.targets)
	statuses := map[string]string{}
	for _, t := range r.targets {
		statuses[t.String()] = t.Status()
	}
	for n, done := range r.results {
		if status, ok := statuses[done.Kind+"/"+done.Name]; ok {
			r.results[n].Status = status
		}
	}
	return failure
}

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
	_ = cmd.MarkFlagRequired("file")
}

// step is a change, and the document that declares it; what is deleted has none.
type step struct {
	managed.Change

	document documents.Document
}

// isDeletion reports whether no document declares it any more.
func (s step) isDeletion() bool { return s.document.Kind == "" }

// plan reads the documents, and gets for each what it would change. Nothing is changed when one of them is wrong.
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
		isBeside := func(d documents.Document) bool { return d.Kind == domain.Deref(m.Kind) && d.Name == m.Name }
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
	found, err := managed.Noun.Find(ctx, a, url.Values{"label": {strings.Join(s.labels, ",")}}, 0)
	if err != nil {
		return nil, err
	}
	members := map[string][]api.Member{}
	var surplus []documents.Document
	for _, item := range found {
		m := item.Value
		if id := m.Kind + "/" + m.Name; declared[id] || m.Status == "deleting" || !s.selects(m.Labels) {
			continue
		}
		d, err := documents.New(m.Kind, item.Raw)
		if err != nil {
			return nil, err
		}
		members[d.ID()] = m.Members
		surplus = append(surplus, d)
	}
	documents.Sort(surplus)
	slices.Reverse(surplus)
	var steps []step
	for _, d := range surplus {
		steps = append(steps, step{Change: managed.Deletion(d, members[d.ID()])})
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

// Diff is the command that shows how files differ from what is declared.
func Diff(a *cli.App) *cobra.Command {
	var from source
	cmd := &cobra.Command{
		Use: "diff --file FILE", Short: "Show what apply would change", Args: cobra.NoArgs,
		Long: `Show how files differ from what is declared, field by field.

Exit codes: 0 without a difference, 1 with one, and more than 1 after an error.`,
		Example:     "  cloudfn diff -f servers/\n  cloudfn diff -f servers/ --prune -l app=web",
		Annotations: cli.Calls("putManaged", "putFlavor", "listManaged"), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			steps, err := from.plan(cmd.Context(), a)
			if err == nil {
				err = managed.ShowChanges(a, changes(steps, false))
			}
			n := len(changes(steps, false))
			return managed.DiffResult(a, err, n > 0, fmt.Sprintf("%d of %d differ", n, len(steps)))
		},
	}
	from.flags(cmd)
	return cmd
}
