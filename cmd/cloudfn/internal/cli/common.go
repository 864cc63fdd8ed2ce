package cli

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
	"github.com/cloudfn/cloudfn/shared/openstack"
)

// calls notes which operations of the API a command calls: a test holds that none is missing.
func calls(operations ...string) map[string]string {
	return map[string]string{"operations": strings.Join(operations, ",")}
}

// patience is how long a completion may take: the user waits at every key.
const patience = 2 * time.Second

// group is a command that only holds others.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Args: cobra.NoArgs, RunE: func(c *cobra.Command, _ []string) error { return c.Help() }}
	c.AddCommand(commands...)
	return c
}

// complete offers what the function finds, each with a tab and a description if it has one; what goes wrong offers nothing.
func (a *app) complete(find func(context.Context) ([]string, error)) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, toComplete string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), patience)
		defer cancel()
		a.completing = true
		found, err := find(ctx)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		found = slices.DeleteFunc(found, func(name string) bool {
			name, description, _ := strings.Cut(name, "\t")
			return !strings.HasPrefix(name, toComplete) || output.Clean(name+description) != name+description
		})
		return found, cobra.ShellCompDirectiveNoFileComp
	}
}

// completions are those of the flags that every command has.
func (a *app) completions(root *cobra.Command) {
	fixed := map[string][]string{"output": output.Formats, "url": nil, "columns": nil}
	for _, flag := range slices.Sorted(maps.Keys(fixed)) {
		_ = root.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(fixed[flag], cobra.ShellCompDirectiveNoFileComp))
	}
	_ = root.RegisterFlagCompletionFunc("os-cloud", a.complete(func(context.Context) ([]string, error) {
		file, _ := a.env("OS_CLIENT_CONFIG_FILE")
		names, _, err := openstack.CloudNames(file)
		return names, err
	}))
}

// limitFlag is how many things of a list are wanted.
func limitFlag(cmd *cobra.Command, most *int, usual int) {
	cmd.Flags().IntVar(most, "limit", usual, "how many at most (0 = all)")
	_ = cmd.RegisterFlagCompletionFunc("limit", cobra.NoFileCompletions)
}

func checkLimit(most int) error {
	if most < 0 {
		return wrong("--limit is %d: give how many, or 0 for all", most)
	}
	return nil
}

// span is how long: in days, as 7d, or as 90m and 24h are.
func span(text string) (time.Duration, bool) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		n, err := strconv.Atoi(days)
		return time.Duration(n) * 24 * time.Hour, err == nil && n >= 0 && n < 100_000 // which a Duration can still hold
	}
	d, err := time.ParseDuration(text)
	return d, err == nil && d >= 0
}

// value is what a pointer of the API's points to, or nothing.
func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// stamp is a time as tables show it; the zero time is nothing.
func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05")
}
