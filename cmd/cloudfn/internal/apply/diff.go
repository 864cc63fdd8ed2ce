package apply

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/managed"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
)

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
				err = show(a, changes(steps, false))
			}
			if err != nil && a.Code(err) == exit.Failed {
				return exit.Usagef("%w", err)
			}
			if n := len(changes(steps, false)); err == nil && n > 0 {
				return exit.Failedf("%d of %d differ", n, len(steps))
			}
			return err
		},
	}
	from.flags(cmd)
	return cmd
}

// show prints differences: for people as lines that are removed and added.
func show(a *cli.App, all []managed.Change) error {
	if a.Print.Format != "table" && a.Print.Format != "wide" {
		return managed.PrintChanges(a, all)
	}
	var text strings.Builder
	for _, c := range all {
		fmt.Fprintln(&text, output.Bold(a.Print.Color, fmt.Sprintf("%s/%s (%s)", c.Kind, c.Name, c.Action)))
		if c.Note != "" {
			fmt.Fprintln(&text, "  "+output.Clean(c.Note))
		}
		for _, f := range c.Fields {
			if f.From == nil && f.To == nil {
				fmt.Fprintln(&text, output.Added(a.Print.Color, "+ "+f.String()))
			}
			for _, line := range lines(f.Field, f.From) {
				fmt.Fprintln(&text, output.Removed(a.Print.Color, "- "+line))
			}
			for _, line := range lines(f.Field, f.To) {
				fmt.Fprintln(&text, output.Added(a.Print.Color, "+ "+line))
			}
		}
	}
	_, err := fmt.Fprint(a.Out, text.String())
	return err
}

// lines are those of a field: one, or for a text of several lines each of them.
func lines(field string, value any) []string {
	if value == nil {
		return nil
	}
	text := managed.Text(value)
	if !strings.Contains(text, "\n") {
		return []string{field + ": " + text}
	}
	all := []string{field + ": |"}
	for line := range strings.Lines(text) {
		all = append(all, "    "+strings.TrimRight(line, "\n"))
	}
	return all
}
