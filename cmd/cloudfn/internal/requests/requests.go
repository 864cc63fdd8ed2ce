// Package requests holds the commands that read the request log.
package requests

import (
	"cmp"
	"fmt"
	"io"
	"net/url"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
	"github.com/cloudfn/cloudfn/shared/domain"
)

const path = "/v1/requests"

// Command reads the log.
func Command(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use: "requests", Short: "Read the request log, the newest first", Args: cobra.NoArgs,
		Example: "  cloudfn requests --since 1h --errors\n" +
			"  cloudfn requests --limit 0 --since 2026-01-02T00:00:00Z -o json\n" +
			"  cloudfn requests --acted-through any -o wide",
		Annotations: cli.Calls("listRequests"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			list := api.List[api.Request]{
				Path: path, Key: "requests", Query: query(cmd.Flags()), Limit: cli.Limit(cmd),
			}
			return cli.PrintList(cmd, a, func() ([]api.Item[api.Request], output.Table[api.Request], error) {
				found, err := list.Read(cmd.Context(), a.API())
				return found, table, err
			})
		},
	}
	cli.WatchFlag(cmd)
	filterFlags(a, cmd)
	cli.LimitFlag(cmd, 50)
	cmd.AddCommand(export(a))
	return cmd
}

func filterFlags(a *cli.App, cmd *cobra.Command) {
	cli.ScopeFlags(cmd)
	a.Since(cmd, "since",
		"only from then on: a time such as 2026-01-02T03:04:05Z, or how long ago, such as 90m, 24h or 7d")
	cmd.Flags().String("acted-through", "", "only requests through this connection of the project (any = through any)")
	cli.Choices(cmd, "acted-through", "any")
	cmd.Flags().Bool(string(domain.RequestErrors), false, "only requests that were answered with 400 or more")
	cmd.Flags().Bool(string(domain.RequestChanges), false, "only requests that may have changed something")
	cmd.MarkFlagsMutuallyExclusive(string(domain.RequestErrors), string(domain.RequestChanges))
}

func query(flags *pflag.FlagSet) url.Values {
	selected := cli.Query(flags, "scope", "project:project_id", "since", "acted-through")
	for _, kind := range []domain.RequestKind{domain.RequestErrors, domain.RequestChanges} {
		if isOn, _ := flags.GetBool(string(kind)); isOn {
			selected.Set("only", string(kind))
		}
	}
	return selected
}

func export(a *cli.App) *cobra.Command {
	var format, file *string
	cmd := &cobra.Command{
		Use: "export", Args: cobra.NoArgs,
		Short: "Write all selected rows of the request log as CSV or as lines of JSON",
		Example: "  cloudfn requests export --since 7d --file requests.csv\n" +
			"  cloudfn requests export --acted-through any --format ndjson | jq .user_name",
		Annotations: cli.Calls("listRequests"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.TextOnly(cmd, "table"); err != nil {
				return fmt.Errorf("%w; --format csv and ndjson say what the file has", err)
			}
			accept := map[string]string{"csv": "text/csv", "ndjson": "application/x-ndjson"}[*format]
			return a.WriteFile(*file, func(w io.Writer) error {
				return a.API().Copy(cmd.Context(), w, path, query(cmd.Flags()), accept)
			})
		},
	}
	filterFlags(a, cmd)
	format = cli.Choice(cmd, "format", "csv or ndjson", "csv", "ndjson")
	file = cmd.Flags().StringP("file", "f", "-", "write to this file, whole or not at all (- is the standard output)")
	return cmd
}

var table = output.Table[api.Request]{
	Name: func(r api.Request) string { return r.RequestID },
	Columns: []string{
		"AT", "FUNCTION", "METHOD", "PATH", "STATUS*", "CODE+", "COUNT+", "MS", "USER", "USER_ID+",
		"PROJECT+:project_id",
		"DOMAIN+:domain_id", "REMOTE+", "CONNECTION+:connection_id", "ACTED_IN+", "REQUEST_ID+",
	},
	Texts: map[string]func(api.Request) string{
		"USER": func(r api.Request) string { return cmp.Or(domain.Deref(r.UserName), r.UserID) },
	},
}
