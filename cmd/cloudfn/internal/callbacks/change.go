package callbacks

import (
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/orders"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/servers"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// subscription is the request for a callback at a URL.
func subscription(cmd *cobra.Command, url string) map[string]any {
	body := cli.Body(cmd.Flags(),
		"events", "order:order_id", "for:order_id", "instance:instance_id", "connection:connection_id")
	body["url"] = url
	return body
}

func subscriptionFlags(a *cli.App, cmd *cobra.Command) {
	eventsFlag(cmd)
	cmd.Flags().String("instance", "", "only events of this instance: a server, by its name or id")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error { return servers.InstanceFlag(cmd, a, "instance") }
	a.ConnectionFlag(cmd, "only events that were caused through this connection")
}

// orderFlag adds a flag for an order whose events are wanted.
func orderFlag(a *cli.App, cmd *cobra.Command, name, usage string) {
	cmd.Flags().String(name, "", usage)
	a.CompleteFlag(cmd, name, orders.Finder(a))
}

func eventsFlag(cmd *cobra.Command) {
	types := domain.EventTypes()
	cmd.Flags().StringSlice("events", nil, "types of events (default all): "+strings.Join(types, ", "))
	cli.Choices(cmd, "events", types...)
}

// addSecret adds the secret of a file to a request, if the user gives one.
func addSecret(a *cli.App, cmd *cobra.Command, body map[string]any) error {
	if !cmd.Flags().Changed("secret-file") {
		return nil
	}
	return a.Secret(cmd.Context(), cmd, "Secret: ", body)
}

func secretFlag(cmd *cobra.Command) {
	cli.SecretFileFlag(cmd,
		"file with a secret of your own, whsec_ and 24 to 64 bytes in base64 (- for stdin; default a new secret)")
}

func create(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use: "create URL", Short: "Subscribe a URL to events",
		Long: `Subscribe a URL to events. cloudfn asks its receiver for consent at once; cloudfn callbacks listen is a
receiver for trials. The secret that events are signed with is shown this once.`,
		Example:     "  cloudfn callbacks create https://receiver.example.com/cloud --events cloudfn.order.state.v1",
		Annotations: cli.Calls("createCallback"), ValidArgsFunction: cobra.NoFileCompletions,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 && cmd.Flags().Changed("url") {
				return exit.Usagef("--url says where cloudfn is: give the receiver's URL without a flag, "+
					"as in %s callbacks create URL", a.Name)
			}
			return cobra.ExactArgs(1)(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			body := subscription(cmd, args[0])
			if err := addSecret(a, cmd, body); err != nil {
				return err
			}
			return callbacks.SendOnce(cmd.Context(), a, callbacks.Path, body)
		},
	}
	subscriptionFlags(a, cmd)
	orderFlag(a, cmd, "order", "only events of this order and its instances")
	secretFlag(cmd)
	return cmd
}

func update(a *cli.App) *cobra.Command {
	var isSuspended, isResumed bool
	cmd := callbacks.One(a, "update", "Change, suspend or resume a callback", "changeCallback",
		func(cmd *cobra.Command, id string) error {
			body := cli.Body(cmd.Flags(), "receiver:url", "events")
			switch {
			case isSuspended:
				body["status"] = api.CallbackChangeStatusSuspended
			case isResumed:
				body["status"] = api.CallbackChangeStatusVerified
			}
			return callbacks.Send(cmd.Context(), a, http.MethodPatch, callbacks.URL(id), body)
		})
	cmd.Long = `Change, suspend or resume a callback. While it is suspended its events wait. When its receiver
changes, and when it is resumed, cloudfn asks the receiver for consent.`
	cmd.Example = "  cloudfn callbacks update CALLBACK --suspend\n" +
		"  cloudfn callbacks update CALLBACK --events \"\"   # all"
	cmd.Flags().String("receiver", "", "send to this URL instead")
	eventsFlag(cmd)
	cmd.Flags().BoolVar(&isSuspended, "suspend", false, "deliver nothing until it is resumed")
	cmd.Flags().BoolVar(&isResumed, "resume", false, "deliver again")
	cmd.MarkFlagsMutuallyExclusive("suspend", "resume")
	cmd.MarkFlagsOneRequired("receiver", "events", "suspend", "resume")
	return cmd
}

func rotateSecret(a *cli.App) *cobra.Command {
	cmd := callbacks.One(a, "rotate-secret", "Give a callback another secret", "rotateCallbackSecret",
		func(cmd *cobra.Command, id string) error {
			body := cli.Body(cmd.Flags(), "overlap")
			if err := addSecret(a, cmd, body); err != nil {
				return err
			}
			return callbacks.SendOnce(cmd.Context(), a, callbacks.URL(id, "secret"), body)
		})
	cmd.Long = "Give a callback another secret. For a while cloudfn signs with the previous one as well."
	cmd.Flags().String("overlap", "", "how long the previous secret stays valid: 0s to 168h (default 24h)")
	secretFlag(cmd)
	return cmd
}
