package managed

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
)

func diff(a *cli.App) *cobra.Command {
	cmd := one(a, "diff", "[FROM [TO]]", "Compare revisions of a managed resource, or one with what is real",
		"diffManaged", 2,
		func(cmd *cobra.Command, r Reference, rest []string) error {
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
	if to := cli.Value(diff.To); to != 0 {
		other = "revision " + strconv.Itoa(to)
	}
	names, err := memberNames(ctx, a, r, diff)
	if err != nil {
		return err
	}
	var text strings.Builder
	last := "none"
	for _, d := range diff.Differences {
		member := cli.Value(d.Member)
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
	if !slices.ContainsFunc(diff.Differences, func(d api.ManagedDifference) bool { return cli.Value(d.Member) != "" }) {
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
	if a.Print.Format != "table" && a.Print.Format != "wide" {
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
