package cli

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
)

var connectionStatuses = []string{"active", "expired", "lost", "deleted"}

var permissions = []string{"allocate", "connect", "start", "stop", "reboot", "deploy", "deallocate"}

func (a *app) connectionsCommand() *cobra.Command {
	return group("connections", "Delegate, and see what is delegated",
		a.connectionsListCommand(), a.connectionsShowCommand(), a.connectionsCreateCommand(), a.connectionsCheckCommand(), a.connectionsDeleteCommand(),
		a.accessRulesCommand())
}

func (a *app) connectionsListCommand() *cobra.Command {
	var usable bool
	var statuses []string
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List what the project has delegated, or what you may act through", Args: cobra.NoArgs,
		Annotations: calls("listConnections"), Example: "  cloudfn connections list --status lost,deleted",
		RunE: func(cmd *cobra.Command, _ []string) error {
			query := url.Values{}
			if usable {
				query.Set("usable", "true")
			}
			if len(statuses) > 0 {
				query.Set("status", strings.Join(statuses, ","))
			}
			found, err := a.connections(cmd.Context(), query)
			if err != nil {
				return err
			}
			return output.List(&a.print, found, connectionID, connectionColumns)
		},
	}
	cmd.Flags().BoolVar(&usable, "usable", false, "the active ones, of whatever project, that you may act through")
	cmd.Flags().StringSliceVar(&statuses, "status", nil, "only those that are "+strings.Join(connectionStatuses, ", ")+" (default all but deleted)")
	_ = cmd.RegisterFlagCompletionFunc("status", cobra.FixedCompletions(connectionStatuses, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (a *app) connections(ctx context.Context, query url.Values) ([]api.Item[api.Connection], error) {
	client, err := a.api(ctx)
	if err != nil {
		return nil, err
	}
	return api.List[api.Connection](ctx, client, "/v1/connections", query, "connections", 0)
}

// connectionIDs are the project's own connections, for completion.
func (a *app) connectionIDs(ctx context.Context) ([]string, error) {
	found, err := a.connections(ctx, nil)
	var ids []string
	for _, c := range found {
		ids = append(ids, c.Value.ID+"\t"+strings.TrimPrefix(c.Value.Name+", ", ", ")+string(c.Value.Kind)+", "+string(c.Value.Status))
	}
	return ids, err
}

func (a *app) connectionsShowCommand() *cobra.Command {
	return &cobra.Command{
		Use: "show CONNECTION", Short: "Show a connection", Args: cobra.ExactArgs(1),
		Annotations: calls("getConnection"), ValidArgsFunction: first(a.complete(a.connectionIDs)),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := a.api(cmd.Context())
			if err != nil {
				return err
			}
			found, err := api.One[api.Connection](cmd.Context(), client, "/v1/connections/"+url.PathEscape(args[0]), nil)
			if err != nil {
				return err
			}
			return a.printConnection(found)
		},
	}
}

func (a *app) printConnection(c api.Item[api.Connection]) error {
	for _, w := range value(c.Value.Warnings) {
		fmt.Fprintln(a.err, "warning:", output.Clean(w))
	}
	return output.One(&a.print, c, connectionID, slices.Concat(connectionColumns, connectionDetails))
}

func (a *app) connectionsDeleteCommand() *cobra.Command {
	return &cobra.Command{
		Use: "delete CONNECTION...", Short: "End a connection, and take back what was delegated", Args: cobra.MinimumNArgs(1),
		Long:        "End a connection, and take back what was delegated. The servers that were launched through it stay, in its project.",
		Annotations: calls("deleteConnection", "getConnection"), ValidArgsFunction: a.complete(a.connectionIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := a.api(cmd.Context())
			if err != nil {
				return err
			}
			return a.each(args, func(id string) error { return a.deleteConnection(cmd.Context(), client, id) })
		},
	}
}

func (a *app) deleteConnection(ctx context.Context, client *api.Client, id string) error {
	path := "/v1/connections/" + url.PathEscape(id)
	found, err := api.One[api.Connection](ctx, client, path, nil)
	if err != nil {
		return err
	}
	if _, err := client.Do(ctx, http.MethodDelete, path, nil, nil); err != nil {
		return err
	}
	c := found.Value
	fmt.Fprintf(a.err, "Connection %s has ended: nobody acts through it any more.\n", c.ID)
	if n := c.Used.Instances; n > 0 {
		fmt.Fprintf(a.err, "What ran through it stays in project %s, where %s servers list shows it: %s.\n", output.Clean(c.ProjectID), a.name, count(n, "server"))
	}
	if c.Kind == api.ApplicationCredential {
		fmt.Fprintln(a.err, "The application credential stays in Keystone: delete it with openstack application credential delete.")
		return nil
	}
	ended, err := api.One[api.Connection](ctx, client, path, nil)
	if err != nil {
		return err
	}
	if value(ended.Value.Revocation) == api.RevocationDone {
		fmt.Fprintln(a.err, "The trust is gone from Keystone.")
		return nil
	}
	fmt.Fprintf(a.err, "Keystone has the trust until %s, if it does not let it be deleted before: %s connections show %s says when it is gone.\n",
		stamp(value(ended.Value.TrustExpiresAt)), a.name, c.ID)
	return nil
}

func (a *app) accessRulesCommand() *cobra.Command {
	var actions []string
	cmd := &cobra.Command{
		Use: "access-rules", Short: "List what an application credential must allow", Args: cobra.NoArgs,
		Example: `  cloudfn connections access-rules --actions allocate,stop -o json > rules.json
  openstack application credential create cloudfn --access-rules rules.json`,
		Annotations: calls("suggestAccessRules"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := a.api(cmd.Context())
			if err != nil {
				return err
			}
			query := url.Values{}
			if len(actions) > 0 {
				query.Set("actions", strings.Join(actions, ","))
			}
			found, err := api.One[api.SuggestedAccessRules](cmd.Context(), client, "/v1/connections/access-rules", query)
			if err != nil {
				return err
			}
			return a.printRules(found.Value.SuggestedAccessRules)
		},
	}
	cmd.Flags().StringSliceVar(&actions, "actions", nil, "what is to be permitted: "+strings.Join(permissions, ", ")+" (default all)")
	_ = cmd.RegisterFlagCompletionFunc("actions", cobra.FixedCompletions(permissions, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// printRules prints rules; as JSON they are the file that openstack application credential create takes.
func (a *app) printRules(rules api.AccessRules) error {
	items, err := itemsOf(rules)
	if err != nil {
		return err
	}
	return output.List(&a.print, items, func(r api.AccessRule) string { return string(r.Method) + " " + r.Path }, ruleColumns)
}

func connectionID(c api.Connection) string { return c.ID }

var connectionColumns = []output.Column[api.Connection]{
	{Title: "ID", Text: connectionID},
	{Title: "NAME", Text: func(c api.Connection) string { return c.Name }},
	{Title: "KIND", Wide: true, Text: func(c api.Connection) string { return string(c.Kind) }},
	{Title: "STATUS", State: true, Text: func(c api.Connection) string { return string(c.Status) }},
	{Title: "ACTIONS", Text: func(c api.Connection) string { return joined(c.Actions) }},
	{Title: "USED", Text: func(c api.Connection) string { return used(c) }},
	{Title: "ENDS", Text: func(c api.Connection) string { return stamp(c.EndsAt) }},
	{Title: "LAST_USED", Wide: true, Text: func(c api.Connection) string { return stamp(value(c.LastUsedAt)) }},
	{Title: "PROJECT", Wide: true, Text: func(c api.Connection) string { return c.ProjectID }},
}

// connectionDetails are what only one connection shows.
var connectionDetails = []output.Column[api.Connection]{
	{Title: "REASON", Text: func(c api.Connection) string { return value(c.Reason) }},
	{Title: "REVOCATION", Text: func(c api.Connection) string { return string(value(c.Revocation)) }},
	{Title: "TRUST_END", Text: func(c api.Connection) string { return stamp(value(c.TrustExpiresAt)) }},
	{Title: "VCPUS", Text: func(c api.Connection) string { return share(c.Used.Vcpus, c.Quota.Vcpus) }},
	{Title: "RAM_MB", Text: func(c api.Connection) string { return share(c.Used.RAMMb, c.Quota.RAMMb) }},
	{Title: "ACTS_AS", Text: func(c api.Connection) string {
		if c.ActsAs == nil {
			return ""
		}
		return c.ActsAs.UserName + " in " + c.ActsAs.ProjectName + " (" + strings.Join(c.ActsAs.Roles, ", ") + ")"
	}},
	{Title: "LIMITS", Text: func(c api.Connection) string { return limitsText(c.Limits) }},
	{Title: "USABLE_BY", Text: usableText},
	{Title: "IDLE_TIMEOUT", Text: func(c api.Connection) string { return value(c.IdleTimeout) }},
	{Title: "CLOUD", Text: func(c api.Connection) string { return value(c.AuthURL) }},
	{Title: "REGION", Text: func(c api.Connection) string { return value(c.Region) }},
	{Title: "CHECKED", Text: func(c api.Connection) string { return stamp(value(c.CheckedAt)) }},
	{Title: "CREATED", Text: func(c api.Connection) string { return stamp(c.CreatedAt) }},
}

var ruleColumns = []output.Column[api.AccessRule]{
	{Title: "SERVICE", Text: func(r api.AccessRule) string { return string(r.Service) }},
	{Title: "METHOD", Text: func(r api.AccessRule) string { return string(r.Method) }},
	{Title: "PATH", Text: func(r api.AccessRule) string { return r.Path }},
}

func used(c api.Connection) string { return share(c.Used.Instances, c.Quota.Instances) }

// share is how much of a quota is used; nil is none.
func share(n int, of *int) string {
	if of == nil {
		return strconv.Itoa(n)
	}
	return strconv.Itoa(n) + " of " + strconv.Itoa(*of)
}
