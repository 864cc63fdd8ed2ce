package connections

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
	"github.com/cloudfn/cloudfn/shared/domain"
)

var requests = cli.Noun[api.ConnectionRequest]{
	Path: connections.Path + "/requests", Key: "requests", Arg: "REQUEST",
	Ref: func(r api.ConnectionRequest) (id, name string, isOver bool) {
		return r.ID, r.Name, r.Status != api.ConnectionRequestStatusPending
	},
	Offer: func(r api.ConnectionRequest) string { return r.ID + "\t" + titled(r.Name, r.RequestedBy.UserName) },
	Table: output.Table[api.ConnectionRequest]{
		Columns: []string{
			"ID", "NAME", "STATUS*", "FROM", "ACTIONS:terms.actions", "UNTIL", "EXPIRES+:expires_at",
			"PROJECT+:project_id",
		},
		Details: []string{
			"WHY", "FOR", "USER_ID:requested_by.user_id", "PROJECT_ID:requested_by.project_id", "SERVERS", "VCPUS",
			"RAM_MB",
			"LIMITS", "REASON", "DECIDED_BY", "CONNECTION:connection_id", "CREATED:created_at",
		},
		Texts: map[string]func(api.ConnectionRequest) string{
			"FROM": from, "UNTIL": until,
			"SERVERS": func(r api.ConnectionRequest) string { return atMost(r.Terms.Quota.Instances) },
			"VCPUS":   func(r api.ConnectionRequest) string { return atMost(r.Terms.Quota.Vcpus) },
			"RAM_MB":  func(r api.ConnectionRequest) string { return atMost(r.Terms.Quota.RAMMb) },
			"LIMITS":  func(r api.ConnectionRequest) string { return limitsText(r.Terms.Limits) },
		},
	},
}

func from(r api.ConnectionRequest) string {
	return r.RequestedBy.UserName + " of " + r.RequestedBy.ProjectName
}

func until(r api.ConnectionRequest) string {
	if r.Terms.Duration != nil {
		return *r.Terms.Duration + " from the grant"
	}
	return output.Time(domain.Deref(r.Terms.ExpiresAt))
}

func atMost(quota *int) string {
	if quota == nil {
		return "any number"
	}
	return fmt.Sprintf("%d at most", *quota)
}

func requestsCommand(a *cli.App) *cobra.Command {
	decisions := []*cobra.Command{
		requests.Show(a, "Show a request for a connection", "getConnectionRequest"), grant(a), decline(a),
	}
	received := url.Values{"received": {"true"}, "status": pending["status"]}
	for _, cmd := range decisions {
		cmd.ValidArgsFunction = a.Complete(1, requests.Finder(a, received, 0))
	}
	group := cli.Group("requests", "Ask for connections, and grant or decline what others ask for",
		listRequests(a), createRequest(a), withdraw(a))
	group.AddCommand(decisions...)
	return group
}

func listRequests(a *cli.App) *cobra.Command {
	cmd := requests.List(a, "List the requests that the project has sent or received", "listConnectionRequests",
		"received", "status")
	cmd.Example = "  cloudfn connections requests list --received --status pending"
	cmd.Flags().Bool("received", false, "those that others have sent to the project")
	cli.Statuses(cmd, domain.RequestStatuses(), " (default all)")
	return cmd
}

func createRequest(a *cli.App) *cobra.Command {
	var expires *cli.Moment
	cmd := &cobra.Command{
		Use:   "create --project PROJECT_ID --why TEXT --actions ACTIONS --expires WHEN",
		Short: "Ask a project for a connection", Args: cobra.NoArgs,
		Long: `Ask the users of a project for a connection. They see who asks and why, and grant it, or less, or
decline it.

Nothing checks that the project exists. After 14 days without a decision the request expires.`,
		Example: `  cloudfn connections requests create --project 0b1c2d3e4f5a6b7c8d9e0f1a2b3c4d5e \
    --why "builds at night" --actions allocate,deallocate --quota-instances 3 --expires 30d`,
		Annotations: cli.Calls("requestConnection"), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			body, err := request(a, cmd)
			if err != nil {
				return err
			}
			if expires.Span > 0 { // counted from the grant
				body["duration"] = expires.Span.String()
				delete(body, "expires_at")
			}
			return requests.SendOnce(cmd.Context(), a, requests.Path, body)
		},
	}
	flags := cmd.Flags()
	flags.String("project", "", "id of the project that is asked; it will own the servers")
	flags.String("why", "", "what the connection is for: the project's users read it")
	actionsFlag(cmd, "what is to be permitted: ")
	expires = a.Until(cmd, "expires",
		"for how long from the grant on, such as 30d, or until when, such as 2027-01-01T00:00:00Z")
	flags.String("name", "", "a name for the connection")
	flags.String("for", "", "who may use it: user (you) or project (yours; default user)")
	quotaFlags(flags, "default any number")
	limitFlags(a, cmd, "default any")
	for _, flag := range []string{"project", "why", "actions", "expires"} {
		_ = cmd.MarkFlagRequired(flag)
	}
	cli.Choices(cmd, "for", string(api.GranteeUser), string(api.GranteeProject))
	return cmd
}

func grant(a *cli.App) *cobra.Command {
	cmd := requests.One(a, "grant", "Grant a request, or less than it requests", "grantConnectionRequest",
		func(cmd *cobra.Command, id string) error {
			body, err := delegation(a, cmd)
			if err != nil {
				return err
			}
			return connections.Send(cmd.Context(), a, http.MethodPost, requests.URL(id, "grant"), body)
		})
	cmd.Long = `Grant a request: make the connection that it requests. Flags can only grant less than it requests.

The connection is a trust made with your own login, or uses an application credential of yours (--kind
application_credential).`
	cmd.Example = `  cloudfn connections requests grant REQUEST
  cloudfn connections requests grant REQUEST --actions allocate --quota-instances 1 --expires 7d`
	cmd.Flags().String("name", "", "another name, for you")
	actionsFlag(cmd, "only these of the actions that it requests: ")
	a.Until(cmd, "expires", expiresUsage+", if earlier than it requests")
	delegationFlags(cmd, " (default trust)")
	quotaFlags(cmd.Flags(), "default as requested")
	limitFlags(a, cmd, "default as requested")
	return cmd
}

func decline(a *cli.App) *cobra.Command {
	cmd := requests.One(a, "decline", "Decline a request for a connection", "declineConnectionRequest",
		func(cmd *cobra.Command, id string) error {
			body := cli.Body(cmd.Flags(), "reason")
			return requests.Send(cmd.Context(), a, http.MethodPost, requests.URL(id, "decline"), body)
		})
	cmd.Flags().String("reason", "", "why, which the requester sees")
	return cmd
}

func withdraw(a *cli.App) *cobra.Command {
	cmd := requests.Each(a, "withdraw", "Withdraw requests for connections", "withdrawConnectionRequest",
		func(ctx context.Context, id string) error {
			if err := a.API().Do(ctx, http.MethodDelete, requests.URL(id), nil, nil); err != nil {
				return err
			}
			a.Notef("Request %s is withdrawn.", id)
			return nil
		})
	cmd.ValidArgsFunction = a.Complete(0, requests.Finder(a, pending, 0))
	return cmd
}
