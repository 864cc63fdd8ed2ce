package servers

import (
	"cmp"
	"context"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
)

// connected is the answer to connect. Through a connection the action is only begun, and less is known.
type connected struct {
	api.ServerConnected
	ActionID string `json:"action_id"`
}

var connectedTable = output.Table[connected]{Columns: []string{
	"INSTANCE:id", "SERVER:server_id", "STATE*", "ORIGIN", "CONNECTION:connection_id", "ACTION:action_id",
}}

func (s *servers) connectCommand() *cobra.Command {
	var id string
	cmd := s.oneCommand("connect", "Track an existing server", []string{"connectServer"},
		func(cmd *cobra.Command, server string) error {
			body := api.ServerConnect{ServerID: server, ID: cli.Optional(id), ConnectionID: cli.Optional(s.connection)}
			made, err := api.Send[connected](cmd.Context(), s.API(), http.MethodPost, "/v1/servers", body)
			if err != nil {
				return err
			}
			return output.One(&s.Print, made, connectedTable)
		})
	cmd.Long = `Track an existing server as an instance: cloudfn follows its state, and sends its changes to
callbacks. The server itself does not change. A server that is tracked already stays the same instance.`
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if err := cobra.ExactArgs(1)(cmd, args); err != nil || s.connection == "" || cli.IsID(args[0]) {
			return err
		}
		return exit.Usagef("a connection lists only the servers that it manages: give the server's id")
	}
	cmd.ValidArgsFunction = s.Complete(1, s.finder(filter{isTracked: new(bool)}))
	cmd.Flags().StringVar(&id, "id", "", "id of the instance (default a new one)")
	return cmd
}

func (s *servers) disconnectCommand() *cobra.Command {
	return s.oneCommand("disconnect", "Stop tracking a server, which keeps running", []string{"deleteServer"},
		func(cmd *cobra.Command, id string) error {
			query := url.Values{"mode": {"disconnect"}}
			if s.connection != "" {
				query.Set("connection_id", s.connection)
			}
			return s.API().Do(cmd.Context(), http.MethodDelete, "/v1/servers/"+id+"?"+query.Encode(), nil, nil)
		})
}

var changedTable = output.Table[api.ServerChanged]{
	Columns: []string{"INSTANCE:id", "SERVER:server_id", "STATE*", "CONNECTION:connection_id", "REUSABLE"},
}

func (s *servers) reusableCommand() *cobra.Command {
	var isOff bool
	cmd := s.oneCommand("reusable", "Let orders with --reuse take a stopped server", []string{"changeServer"},
		func(cmd *cobra.Command, id string) error {
			path, body := "/v1/servers/"+id, api.ServerChange{Reusable: !isOff}
			changed, err := api.Send[api.ServerChanged](cmd.Context(), s.API(), http.MethodPatch, path, body)
			if err != nil {
				return err
			}
			return output.One(&s.Print, changed, changedTable)
		})
	cmd.Long = `Let orders with --reuse take a server of your project that is managed through a connection, while it
is stopped. Its disk stays as it is. Orders can take servers that were launched through the connection without this,
until --off forbids it.`
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if s.connection != "" {
			return exit.Usagef(
				"--connection cannot be combined with it: only a user of the server's own project says what may be " +
					"reused")
		}
		return cobra.ExactArgs(1)(cmd, args)
	}
	cmd.Flags().BoolVar(&isOff, "off", false, "forbid it")
	return cmd
}

// actions are those through connections; the others end with their answers.
var actions = cli.Noun[api.DelegatedAction]{
	Path: "/v1/servers/actions",
	Table: output.Table[api.DelegatedAction]{Columns: []string{
		"ID", "ACTION", "STATUS*", "ERROR:error.detail", "IMAGE:image_id", "INSTANCE:instance_id",
		"CONNECTION:connection_id", "CREATED:created_at", "UPDATED:updated_at",
	}},
}

func (s *servers) actionCommand() *cobra.Command {
	var wait cli.Wait
	cmd := &cobra.Command{
		Use: "action ID --connection ID", Short: "Show the result of an action through a connection",
		Args: cobra.ExactArgs(1), Annotations: cli.Calls("getServerAction"), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if s.connection == "" {
				return exit.Usagef("--connection is needed: cloudfn keeps only actions through a connection")
			}
			return s.showAction(cmd.Context(), args[0], wait)
		},
	}
	wait.Flags(cmd, "the action is done or has failed")
	return cmd
}

func (s *servers) showAction(ctx context.Context, id string, wait cli.Wait) error {
	var found api.Item[api.DelegatedAction]
	poll := func(ctx context.Context) (isDone bool, err error) {
		found, err = s.getAction(ctx, id)
		return err == nil && found.Value.Status != api.DelegatedActionStatusRunning, err
	}
	var err error
	if wait.IsOn {
		state := func() string { return "the action is " + cmp.Or(string(found.Value.Status), "not known yet") }
		err = cli.Poll(ctx, wait.Limit, poll, state)
	} else {
		_, err = poll(ctx)
	}
	if err != nil {
		return err
	}
	if err := actions.Print(s.App, found); err != nil {
		return err
	}
	if found.Value.Status == api.DelegatedActionStatusFailed {
		return exit.Failedf("%s failed: %s", found.Value.Action, cli.Value(found.Value.Error).Detail)
	}
	return nil
}
