package cli

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
)

// connected is the answer to connect. Through a connection it is only going to be, and what is known then is less.
type connected struct {
	api.ServerConnected
	ActionID string `json:"action_id"`
}

func (s *servers) connectCommand() *cobra.Command {
	var id string
	cmd := &cobra.Command{
		Use: "connect SERVER", Short: "Track a server that is there already", Args: cobra.ExactArgs(1), ValidArgsFunction: s.completeUntracked,
		Long: `Track a server that is there already as an instance: it is followed, and its changes are told to callbacks. The server does not
notice. One that is tracked already stays the instance that it is.`,
		Annotations: calls("connectServer", "listServers"),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := s.api(cmd.Context())
			if err != nil {
				return err
			}
			if s.connection != "" && !isID(args[0]) {
				return wrong("what a connection does not manage yet is not listed: give the server's id")
			}
			t, err := s.resolveOne(cmd.Context(), client, args[0])
			if err != nil {
				return err
			}
			body := api.ServerConnect{ServerID: t.id, ID: optional(id), ConnectionID: optional(s.connection)}
			made, _, err := api.Send[connected](cmd.Context(), client, http.MethodPost, "/v1/servers", body)
			if err != nil {
				return err
			}
			return output.One(&s.print, made, func(c connected) string { return c.ID }, connectedFacts)
		},
	}
	cmd.Flags().StringVar(&id, "id", "", "id of the instance (default a new one)")
	return cmd
}

var connectedFacts = []output.Column[connected]{
	{Title: "INSTANCE", Text: func(c connected) string { return c.ID }},
	{Title: "SERVER", Text: func(c connected) string { return c.ServerID }},
	{Title: "STATE", State: true, Text: func(c connected) string { return string(c.State) }},
	{Title: "ORIGIN", Text: func(c connected) string { return string(c.Origin) }},
	{Title: "CONNECTION", Text: func(c connected) string { return value(c.ConnectionID) }},
	{Title: "ACTION", Text: func(c connected) string { return c.ActionID }},
}

// completeUntracked offers the servers that can be connected.
func (s *servers) completeUntracked(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return s.complete(func(ctx context.Context) ([]string, error) {
		client, err := s.api(ctx)
		if err != nil {
			return nil, err
		}
		found, err := s.find(ctx, client, filter{has: true})
		return offers(found, args, begun), err
	})(cmd, args, begun)
}

func (s *servers) reusableCommand() *cobra.Command {
	var off bool
	cmd := &cobra.Command{
		Use: "reusable SERVER", Short: "Let orders with --reuse take a server while it is stopped", Args: cobra.ExactArgs(1), ValidArgsFunction: s.completeServers(1),
		Long: `Let orders with --reuse take a server of your project that is managed through a connection, while it is stopped. Its disk stays as it is.
What was launched through the connection can be taken anyhow, until --off says no.`,
		Annotations: calls("changeServer", "listServers"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if s.connection != "" {
				return wrong("--connection does not go with it: only a user of the server's own project says what may be reused")
			}
			client, err := s.api(cmd.Context())
			if err != nil {
				return err
			}
			t, err := s.resolveOne(cmd.Context(), client, args[0])
			if err != nil {
				return err
			}
			made, _, err := api.Send[api.ServerChanged](cmd.Context(), client, http.MethodPatch, "/v1/servers/"+t.id, api.ServerChange{Reusable: !off})
			if err != nil {
				return err
			}
			return output.One(&s.print, made, func(c api.ServerChanged) string { return c.ID }, changedFacts)
		},
	}
	cmd.Flags().BoolVar(&off, "off", false, "no longer, whatever it came from")
	return cmd
}

var changedFacts = []output.Column[api.ServerChanged]{
	{Title: "INSTANCE", Text: func(c api.ServerChanged) string { return c.ID }},
	{Title: "SERVER", Text: func(c api.ServerChanged) string { return c.ServerID }},
	{Title: "STATE", State: true, Text: func(c api.ServerChanged) string { return string(c.State) }},
	{Title: "CONNECTION", Text: func(c api.ServerChanged) string { return c.ConnectionID }},
	{Title: "REUSABLE", Text: func(c api.ServerChanged) string { return strconv.FormatBool(c.Reusable) }},
}

func (s *servers) disconnectCommand() *cobra.Command {
	return &cobra.Command{
		Use: "disconnect SERVER", Short: "Track a server no more; it goes on", Args: cobra.ExactArgs(1), ValidArgsFunction: s.completeServers(1),
		Annotations: calls("deleteServer", "listServers"),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := s.api(cmd.Context())
			if err != nil {
				return err
			}
			t, err := s.resolveOne(cmd.Context(), client, args[0])
			if err != nil {
				return err
			}
			q := url.Values{"mode": {"disconnect"}}
			if s.connection != "" {
				q.Set("connection_id", s.connection)
			}
			_, err = client.Do(cmd.Context(), http.MethodDelete, "/v1/servers/"+t.id+"?"+q.Encode(), nil, nil)
			return err
		},
	}
}

func (s *servers) actionCommand() *cobra.Command {
	var w waiting
	cmd := &cobra.Command{
		Use: "action ID --connection ID", Short: "Show what became of an action through a connection", Args: cobra.ExactArgs(1),
		Annotations: calls("getServerAction"), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if s.connection == "" {
				return wrong("--connection is needed: only actions through a connection can be looked at later")
			}
			client, err := s.api(cmd.Context())
			if err != nil {
				return err
			}
			return s.showAction(cmd.Context(), client, args[0], w)
		},
	}
	w.flags(cmd, "the action is done or has failed")
	return cmd
}

func (s *servers) showAction(ctx context.Context, client *api.Client, id string, w waiting) error {
	var found api.Item[api.DelegatedAction]
	look := func(ctx context.Context) (bool, error) {
		var err error
		found, err = api.One[api.DelegatedAction](ctx, client, "/v1/servers/actions/"+url.PathEscape(id), through(s.connection))
		return err == nil && found.Value.Status != api.DelegatedActionStatusRunning, err
	}
	var err error
	if w.on {
		err = until(ctx, w.limit, look, func() string { return "the action is " + cmp.Or(string(found.Value.Status), "not known yet") })
	} else {
		_, err = look(ctx)
	}
	if err != nil {
		return err
	}
	if err := output.One(&s.print, found, func(a api.DelegatedAction) string { return a.ID }, actionFacts); err != nil {
		return err
	}
	if found.Value.Status == api.DelegatedActionStatusFailed {
		return failed{fmt.Errorf("%s failed: %s", found.Value.Action, value(found.Value.Error).Detail)}
	}
	return nil
}

var actionFacts = []output.Column[api.DelegatedAction]{
	{Title: "ID", Text: func(a api.DelegatedAction) string { return a.ID }},
	{Title: "ACTION", Text: func(a api.DelegatedAction) string { return string(a.Action) }},
	{Title: "STATUS", State: true, Text: func(a api.DelegatedAction) string { return string(a.Status) }},
	{Title: "ERROR", Text: func(a api.DelegatedAction) string { return value(a.Error).Detail }},
	{Title: "INSTANCE", Text: func(a api.DelegatedAction) string { return a.InstanceID }},
	{Title: "CONNECTION", Text: func(a api.DelegatedAction) string { return a.ConnectionID }},
	{Title: "CREATED", Text: func(a api.DelegatedAction) string { return stamp(a.CreatedAt) }},
	{Title: "UPDATED", Text: func(a api.DelegatedAction) string { return stamp(a.UpdatedAt) }},
}
