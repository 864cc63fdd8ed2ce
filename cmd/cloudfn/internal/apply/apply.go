// Package apply holds the commands for files of declarations: apply, diff and get.
package apply

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/managed"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
)

// applier is one run of apply.
type applier struct {
	*cli.App
	source

	wait    cli.Wait
	isDry   bool
	isSure  bool // nobody is asked
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
	run.wait.Flags(cmd, "all are ready, and what is pruned is gone")
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

// confirm shows the changes at a terminal, and asks whether they are to be made.
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
	case s.document.IsFlavor():
		if err := managed.DeclareFlavor(ctx, r.App, s.document, s.ETag); err != nil {
			return err
		}
	default:
		m, err := managed.Declare(ctx, r.App, s.document, s.ETag)
		if err != nil {
			return err
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
	failure := managed.Await(ctx, r.App, r.wait.Limit, r.targets)
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
