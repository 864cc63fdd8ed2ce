package cli

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
	"github.com/cloudfn/cloudfn/shared/openstack"
)

// completionTime is how long a completion may take: the user waits at every key.
const completionTime = 2 * time.Second

// Finder finds completions, each with a tab and a description if it has one. args are the arguments before, and begun
// is what was typed of this one.
type Finder func(ctx context.Context, args []string, begun string) ([]string, error)

// Complete completes the first most arguments (0 = all). After an error it completes nothing and says why, where the
// shell shows that: bash and zsh do.
func (a *App) Complete(most int, find Finder) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if most > 0 && len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
		defer cancel()
		a.isCompleting = true
		found, err := find(ctx, args, begun)
		if err != nil {
			return cobra.AppendActiveHelp(nil, output.Clean(a.noCompletions(err))), cobra.ShellCompDirectiveNoFileComp
		}
		return slices.DeleteFunc(found, func(text string) bool {
			name, description, _ := strings.Cut(text, "\t")
			return !strings.HasPrefix(name, begun) || output.Clean(name+description) != name+description
		}), cobra.ShellCompDirectiveNoFileComp
	}
}

// noCompletions says why a completion failed.
func (a *App) noCompletions(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Sprintf("no completions: %s did not answer within %s", a.URL, completionTime)
	}
	return "no completions: " + err.Error()
}

// CompleteFlag completes a flag.
func (a *App) CompleteFlag(cmd *cobra.Command, flag string, find Finder) {
	_ = cmd.RegisterFlagCompletionFunc(flag, a.Complete(0, find))
}

// Choices completes a flag by fixed values; by none when only the user knows them.
func Choices(cmd *cobra.Command, flag string, values ...string) {
	fixed := cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)
	_ = cmd.RegisterFlagCompletionFunc(flag, fixed)
}

func (a *App) clouds(context.Context, []string, string) ([]string, error) {
	names, _, err := openstack.CloudNames(openstack.Config{
		ConfigFile: a.Getenv("OS_CLIENT_CONFIG_FILE"), SecureFile: a.Getenv("OS_CLIENT_SECURE_FILE"),
	})
	return names, err
}

// ConnectionFlag adds --connection, the id of a connection that the user may act through.
func (a *App) ConnectionFlag(cmd *cobra.Command, usage string) {
	a.ConnectionFlagOf(cmd, cmd.Flags(), new(string), usage)
}

// ConnectionFlagOf adds --connection to some of the command's flags.
func (a *App) ConnectionFlagOf(cmd *cobra.Command, flags *pflag.FlagSet, id *string, usage string) {
	flags.StringVar(id, "connection", "", usage)
	flag := flags.Lookup("connection")
	flag.Value = notEmpty{flag.Value}
	a.CompleteFlag(cmd, "connection", a.UsableConnections)
}

// UsableConnections finds the ids of the connections that the user may act through.
func (a *App) UsableConnections(ctx context.Context, _ []string, _ string) ([]string, error) {
	list := api.List[api.Connection]{
		Path: "/v1/connections", Key: "connections", Query: url.Values{"usable": {"true"}},
	}
	found, err := list.Read(ctx, a.API())
	var ids []string
	for _, c := range found {
		ids = append(ids, c.Value.ID+"\t"+string(c.Value.Kind)+" "+string(c.Value.Status))
	}
	return ids, err
}
