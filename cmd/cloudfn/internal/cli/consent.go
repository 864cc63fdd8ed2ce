package cli

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
)

const consentPath = "/v1/connections/requests"

var consentStatuses = []string{"pending", "granted", "declined", "withdrawn", "expired"}

func (a *app) connectionRequestsCommand() *cobra.Command {
	return group("requests", "Ask for connections, and grant or decline what others ask for",
		a.consentListCommand(), a.consentShowCommand(), a.consentCreateCommand(), a.consentGrantCommand(), a.consentDeclineCommand(), a.consentWithdrawCommand())
}

func (a *app) consentListCommand() *cobra.Command {
	var received bool
	var statuses []string
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the requests that the project has sent, or got", Args: cobra.NoArgs,
		Annotations: calls("listConnectionRequests"), Example: "  cloudfn connections requests list --received --status pending",
		RunE: func(cmd *cobra.Command, _ []string) error {
			found, err := a.consents(cmd.Context(), received, statuses)
			if err != nil {
				return err
			}
			return output.List(&a.print, found, consentID, consentColumns)
		},
	}
	cmd.Flags().BoolVar(&received, "received", false, "those that others have sent to the project")
	cmd.Flags().StringSliceVar(&statuses, "status", nil, "only those that are "+strings.Join(consentStatuses, ", ")+" (default all)")
	_ = cmd.RegisterFlagCompletionFunc("status", cobra.FixedCompletions(consentStatuses, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (a *app) consents(ctx context.Context, received bool, statuses []string) ([]api.Item[api.Consent], error) {
	client, err := a.api(ctx)
	if err != nil {
		return nil, err
	}
	query := url.Values{}
	if received {
		query.Set("received", "true")
	}
	if len(statuses) > 0 {
		query.Set("status", strings.Join(statuses, ","))
	}
	return api.List[api.Consent](ctx, client, consentPath, query, "requests", 0)
}

// consentIDs are the requests that wait, for completion: those that the project got, or has sent.
func (a *app) consentIDs(received bool) func(context.Context) ([]string, error) {
	return func(ctx context.Context) ([]string, error) {
		found, err := a.consents(ctx, received, []string{"pending"})
		var ids []string
		for _, c := range found {
			ids = append(ids, c.Value.ID+"\t"+strings.TrimPrefix(c.Value.Name+", ", ", ")+c.Value.RequestedBy.UserName)
		}
		return ids, err
	}
}

func (a *app) consentShowCommand() *cobra.Command {
	return &cobra.Command{
		Use: "show REQUEST", Short: "Show a request for a connection", Args: cobra.ExactArgs(1),
		Annotations: calls("getConnectionRequest"), ValidArgsFunction: first(a.complete(a.consentIDs(true))),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := a.api(cmd.Context())
			if err != nil {
				return err
			}
			found, err := api.One[api.Consent](cmd.Context(), client, consentPath+"/"+url.PathEscape(args[0]), nil)
			if err != nil {
				return err
			}
			return a.printConsent(found)
		},
	}
}

func (a *app) printConsent(c api.Item[api.Consent]) error {
	return output.One(&a.print, c, consentID, slices.Concat(consentColumns, consentDetails))
}

func (a *app) consentDeclineCommand() *cobra.Command {
	var request api.ConsentDecline
	var reason string
	cmd := &cobra.Command{
		Use: "decline REQUEST", Short: "Decline a request for a connection", Args: cobra.ExactArgs(1),
		Annotations: calls("declineConnectionRequest"), ValidArgsFunction: first(a.complete(a.consentIDs(true))),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := a.api(cmd.Context())
			if err != nil {
				return err
			}
			if reason != "" {
				request.Reason = &reason
			}
			declined, _, err := api.Send[api.Consent](cmd.Context(), client, http.MethodPost, consentPath+"/"+url.PathEscape(args[0])+"/decline", request)
			if err != nil {
				return err
			}
			return a.printConsent(declined)
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, which the requester sees")
	_ = cmd.RegisterFlagCompletionFunc("reason", cobra.NoFileCompletions)
	return cmd
}

func (a *app) consentWithdrawCommand() *cobra.Command {
	return &cobra.Command{
		Use: "withdraw REQUEST...", Short: "Withdraw requests for connections", Args: cobra.MinimumNArgs(1),
		Annotations: calls("withdrawConnectionRequest"), ValidArgsFunction: a.complete(a.consentIDs(false)),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := a.api(cmd.Context())
			if err != nil {
				return err
			}
			return a.each(args, func(id string) error {
				if _, err := client.Do(cmd.Context(), http.MethodDelete, consentPath+"/"+url.PathEscape(id), nil, nil); err != nil {
					return err
				}
				fmt.Fprintf(a.err, "Request %s is withdrawn.\n", output.Clean(id))
				return nil
			})
		},
	}
}

func consentID(c api.Consent) string { return c.ID }

var consentColumns = []output.Column[api.Consent]{
	{Title: "ID", Text: consentID},
	{Title: "NAME", Text: func(c api.Consent) string { return c.Name }},
	{Title: "STATUS", State: true, Text: func(c api.Consent) string { return string(c.Status) }},
	{Title: "FROM", Text: func(c api.Consent) string { return c.RequestedBy.UserName + " of " + c.RequestedBy.ProjectName }},
	{Title: "ACTIONS", Text: func(c api.Consent) string { return joined(c.Terms.Actions) }},
	{Title: "UNTIL", Text: func(c api.Consent) string {
		if c.Terms.Duration != nil {
			return *c.Terms.Duration + " from the grant"
		}
		return stamp(value(c.Terms.ExpiresAt))
	}},
	{Title: "EXPIRES", Wide: true, Text: func(c api.Consent) string { return stamp(c.ExpiresAt) }},
	{Title: "PROJECT", Wide: true, Text: func(c api.Consent) string { return c.ProjectID }},
}

// consentDetails are what only one request shows.
var consentDetails = []output.Column[api.Consent]{
	{Title: "WHY", Text: func(c api.Consent) string { return c.Why }},
	{Title: "FOR", Text: func(c api.Consent) string { return string(c.For) }},
	{Title: "USER_ID", Text: func(c api.Consent) string { return c.RequestedBy.UserID }},
	{Title: "PROJECT_ID", Text: func(c api.Consent) string { return c.RequestedBy.ProjectID }},
	{Title: "SERVERS", Text: func(c api.Consent) string { return limit(c.Terms.Quota.Instances) }},
	{Title: "VCPUS", Text: func(c api.Consent) string { return limit(c.Terms.Quota.Vcpus) }},
	{Title: "RAM_MB", Text: func(c api.Consent) string { return limit(c.Terms.Quota.RAMMb) }},
	{Title: "LIMITS", Text: func(c api.Consent) string { return limitsText(c.Terms.Limits) }},
	{Title: "REASON", Text: func(c api.Consent) string { return value(c.Reason) }},
	{Title: "DECIDED_BY", Text: func(c api.Consent) string { return value(c.DecidedBy) }},
	{Title: "CONNECTION", Text: func(c api.Consent) string { return value(c.ConnectionID) }},
	{Title: "CREATED", Text: func(c api.Consent) string { return stamp(c.CreatedAt) }},
}

// limit is how much may be used.
func limit(of *int) string {
	if of == nil {
		return "any number"
	}
	return fmt.Sprintf("%d at most", *of)
}
