package apply

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/managed"
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
				err = managed.ShowChanges(a, changes(steps, false))
			}
			n := len(changes(steps, false))
			return managed.DiffResult(a, err, n > 0, fmt.Sprintf("%d of %d differ", n, len(steps)))
		},
	}
	from.flags(cmd)
	return cmd
}
