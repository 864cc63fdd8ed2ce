package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
)

func (a *app) connectionsCheckCommand() *cobra.Command {
	return &cobra.Command{
		Use: "check CONNECTION", Short: "Ask Keystone whether a connection still works", Args: cobra.ExactArgs(1),
		Long: `Ask Keystone whether it still accepts what was delegated, and show with which roles and until when.

The exit code is 0 when the connection works, 1 when it does not, or when there was no answer in time, and 6 when its cloud is away.`,
		Annotations: calls("checkConnection"), ValidArgsFunction: first(a.complete(a.connectionIDs)),
		RunE: func(cmd *cobra.Command, args []string) error { return a.checkConnection(cmd.Context(), args[0]) },
	}
}

func (a *app) checkConnection(ctx context.Context, id string) error {
	client, err := a.api(ctx)
	if err != nil {
		return err
	}
	check, _, err := api.Send[api.ConnectionCheck](ctx, client, http.MethodPost, "/v1/connections/"+url.PathEscape(id)+"/check", nil)
	if err != nil {
		return err
	}
	err = output.One(&a.print, check, func(c api.ConnectionCheck) string { return c.ID }, checkColumns)
	c := check.Value
	switch {
	case err != nil || value(c.Works):
		return err
	case c.Works == nil:
		return failed{errors.New("there was no answer in time: check again")}
	}
	return failed{fmt.Errorf("the connection does not work: it is %s", c.Status)}
}

var checkColumns = []output.Column[api.ConnectionCheck]{
	{Title: "ID", Text: func(c api.ConnectionCheck) string { return c.ID }},
	{Title: "WORKS", Text: works},
	{Title: "STATUS", State: true, Text: func(c api.ConnectionCheck) string { return string(c.Status) }},
	{Title: "REASON", Text: func(c api.ConnectionCheck) string { return value(c.Reason) }},
	{Title: "ROLES", Text: func(c api.ConnectionCheck) string { return strings.Join(c.Roles, ", ") }},
	{Title: "ENDS", Text: func(c api.ConnectionCheck) string { return stamp(c.EndsAt) }},
	{Title: "CHECKED", Text: func(c api.ConnectionCheck) string { return stamp(value(c.CheckedAt)) }},
}

func works(c api.ConnectionCheck) string {
	switch {
	case c.Works == nil:
		return "unknown"
	case *c.Works:
		return "yes"
	}
	return "no"
}
