package cli

import (
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
)

func (a *app) requestsCommand() *cobra.Command {
	var which requestsOptions
	var limit int
	var onlyErrors bool
	cmd := &cobra.Command{
		Use: "requests", Short: "Read the request log, the newest first", Args: cobra.NoArgs,
		Example: "  cloudfn requests --since 1h --errors\n" +
			"  cloudfn requests --limit 0 --since 2026-01-02T00:00:00Z -o json\n" +
			"  cloudfn requests --acted-through any -o wide",
		Annotations: calls("listRequests"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkLimit(limit); err != nil {
				return err
			}
			q, err := which.query(a.now())
			if err != nil {
				return err
			}
			client, err := a.api(cmd.Context())
			if err != nil {
				return err
			}
			var keep func(api.Request) bool
			if onlyErrors {
				keep = func(r api.Request) bool { return r.Status >= http.StatusBadRequest }
			}
			found, err := api.Select(cmd.Context(), client, "/v1/requests", q, "requests", limit, keep)
			if err != nil {
				return err
			}
			return output.List(&a.print, found, func(r api.Request) string { return r.RequestID }, requestColumns)
		},
	}
	which.flags(cmd)
	limitFlag(cmd, &limit, 50)
	cmd.Flags().BoolVar(&onlyErrors, "errors", false, "only requests that were answered with 400 or more")
	cmd.AddCommand(a.requestsExportCommand())
	return cmd
}

// requestsOptions are the flags that select requests.
type requestsOptions struct {
	scoped
	since, actedThrough string
}

func (o *requestsOptions) flags(cmd *cobra.Command) {
	o.scoped.flags(cmd)
	cmd.Flags().StringVar(&o.since, "since", "",
		"only from then on: a time such as 2026-01-02T03:04:05Z, or how long ago, such as 90m, 24h or 7d")
	cmd.Flags().StringVar(&o.actedThrough, "acted-through", "",
		"what was done through this connection of the project, by whomever (any = through each)")
	complete := func(flag string, choices ...string) {
		_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(choices, cobra.ShellCompDirectiveNoFileComp))
	}
	complete("since", "1h", "24h", "7d")
	complete("acted-through", "any")
}

func (o *requestsOptions) query(now time.Time) (url.Values, error) {
	q := o.scoped.query()
	if o.since != "" {
		from, err := past(o.since, now)
		if err != nil {
			return nil, err
		}
		q.Set("since", from.UTC().Format(time.RFC3339Nano))
	}
	if o.actedThrough != "" {
		q.Set("acted_through", o.actedThrough)
	}
	return q, nil
}

// past is a time, or how long ago it was.
func past(text string, now time.Time) (time.Time, error) {
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return at, nil
	}
	if ago, ok := span(text); ok {
		return now.Add(-ago), nil
	}
	return time.Time{}, wrong("--since is %q: give a time such as 2026-01-02T03:04:05Z, or how long ago, such as 90m, 24h or 7d", text)
}

var requestColumns = []output.Column[api.Request]{
	{Title: "AT", Text: func(r api.Request) string { return stamp(r.At) }},
	{Title: "FUNCTION", Text: func(r api.Request) string { return r.Function }},
	{Title: "METHOD", Text: func(r api.Request) string { return r.Method }},
	{Title: "PATH", Text: func(r api.Request) string { return r.Path }},
	{Title: "STATUS", State: true, Text: func(r api.Request) string { return strconv.Itoa(r.Status) }},
	{Title: "CODE", Wide: true, Text: func(r api.Request) string { return string(value(r.Code)) }},
	{Title: "MS", Text: func(r api.Request) string { return strconv.Itoa(r.Ms) }},
	{Title: "USER", Text: func(r api.Request) string { return r.UserID }},
	{Title: "USER_NAME", Wide: true, Text: func(r api.Request) string { return value(r.UserName) }},
	{Title: "PROJECT", Wide: true, Text: func(r api.Request) string { return r.ProjectID }},
	{Title: "DOMAIN", Wide: true, Text: func(r api.Request) string { return r.DomainID }},
	{Title: "REMOTE", Wide: true, Text: func(r api.Request) string { return r.Remote }},
	{Title: "CONNECTION", Wide: true, Text: func(r api.Request) string { return value(r.ConnectionID) }},
	{Title: "ACTED_IN", Wide: true, Text: func(r api.Request) string { return value(r.ActedIn) }},
	{Title: "REQUEST_ID", Text: func(r api.Request) string { return r.RequestID }},
}
