// Package requests holds the commands that read the request log.
package requests

import (
	"cmp"
	"io"
	"net/http"
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
	var onlyErrors bool
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
			if onlyErrors {
				list.Keep = func(r api.Request) bool { return r.Status >= http.StatusBadRequest }
			}
			found, err := list.Read(cmd.Context(), a.API())
			if err != nil {
				return err
			}
			return output.List(&a.Print, found, table)
		},
	}
	filterFlags(a, cmd)
	cli.LimitFlag(cmd, 50)
	cmd.Flags().BoolVar(&onlyErrors, "errors", false, "only requests that were answered with 400 or more")
	cmd.AddCommand(export(a))
	return cmd
}

func filterFlags(a *cli.App, cmd *cobra.Command) {
	cli.ScopeFlags(cmd)
	a.Since(cmd, "since",
		"only from then on: a time such as 2026-01-02T03:04:05Z, or how long ago, such as 90m, 24h or 7d")
	cmd.Flags().String("acted-through", "", "only requests through this connection of the project (any = through any)")
	cli.Choices(cmd, "acted-through", "any")
}

func query(flags *pflag.FlagSet) url.Values {
	return cli.Query(flags, "scope", "project:project_id", "since", "acted-through")
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
		"DOMAIN+:domain_id", "REMOTE+", "CONNECTION+:connection_id", "ACTED_IN+", "REQUEST_ID",
	},
	Texts: map[string]func(api.Request) string{
		"USER": func(r api.Request) string { return cmp.Or(domain.Deref(r.UserName), r.UserID) },
	},
}
