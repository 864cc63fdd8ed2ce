package cli

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
)

// subject is what a callback hears of, as flags say it.
type subject struct {
	events                      []string
	order, instance, connection string
}

func (s *subject) flags(a *app, cmd *cobra.Command) {
	eventsFlag(cmd, &s.events)
	cmd.Flags().StringVar(&s.instance, "instance", "", "only what happens to this instance")
	cmd.Flags().StringVar(&s.connection, "connection", "", "only what happens through this connection")
	_ = cmd.RegisterFlagCompletionFunc("connection", a.complete(a.usableConnections))
}

func eventsFlag(cmd *cobra.Command, events *[]string) {
	cmd.Flags().StringSliceVar(events, "events", nil, "types of events (default all): "+strings.Join(eventTypes, ", "))
	_ = cmd.RegisterFlagCompletionFunc("events", cobra.FixedCompletions(eventTypes, cobra.ShellCompDirectiveNoFileComp))
}

func (s *subject) request(url string) api.CallbackRequest {
	r := api.CallbackRequest{URL: url, OrderID: optional(s.order), InstanceID: optional(s.instance), ConnectionID: optional(s.connection)}
	if len(s.events) > 0 {
		r.Events = types(s.events)
	}
	return r
}

func types(events []string) *[]api.EventType {
	all := make([]api.EventType, len(events))
	for n, event := range events {
		all[n] = api.EventType(event)
	}
	return &all
}

func (a *app) callbacksCreateCommand() *cobra.Command {
	var s subject
	var secretFile string
	cmd := &cobra.Command{
		Use: "create URL", Short: "Have events sent to a URL",
		Long: `Have events sent to a URL. Its receiver is asked for its consent at once; cloudfn callbacks listen is one for trying. The secret
that events are signed with is shown this once.`,
		Example:     "  cloudfn callbacks create https://receiver.example.com/cloud --events cloudfn.order.state.v1",
		Annotations: calls("createCallback"), ValidArgsFunction: cobra.NoFileCompletions,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 && cmd.Flags().Changed("url") {
				return wrong("--url says where cloudfn is: give the receiver's URL without a flag, as in %s callbacks create URL", a.name)
			}
			return cobra.ExactArgs(1)(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			request := s.request(args[0])
			if err := a.giveSecret(cmd, secretFile, &request.Secret); err != nil {
				return err
			}
			client, err := a.api(cmd.Context())
			if err != nil {
				return err
			}
			made, _, err := api.Send[api.CallbackWithSecret](cmd.Context(), client, http.MethodPost, "/v1/callbacks", request)
			if err != nil {
				return err
			}
			return a.printWithSecret(made)
		},
	}
	s.flags(a, cmd)
	cmd.Flags().StringVar(&s.order, "order", "", "only what happens to this order and its instances")
	_ = cmd.RegisterFlagCompletionFunc("order", a.complete(a.orderIDs))
	secretFlag(cmd, &secretFile)
	return cmd
}

func secretFlag(cmd *cobra.Command, file *string) {
	cmd.Flags().StringVar(file, "secret-file", "", "file with a secret of your own, whsec_ and 24 to 64 bytes in base64 (- for stdin); else one is made")
}

// giveSecret reads the secret of a file, if there is one.
func (a *app) giveSecret(cmd *cobra.Command, file string, into **api.CallbackSecret) error {
	if !cmd.Flags().Changed("secret-file") {
		return nil
	}
	secret, err := a.secret(cmd.Context(), "--secret-file", file, "Secret: ")
	if err != nil {
		return err
	}
	text := secret.Reveal()
	*into = &text
	return nil
}

// printWithSecret prints a callback with the secret that is shown this once.
func (a *app) printWithSecret(made api.Item[api.CallbackWithSecret]) error {
	var c api.Callback
	if err := json.Unmarshal(made.Raw, &c); err != nil {
		return err
	}
	secret := output.Column[api.Callback]{Title: "SECRET", Text: func(api.Callback) string { return made.Value.Secret }}
	return output.One(&a.print, api.Item[api.Callback]{Value: c, Raw: made.Raw}, callbackID, slices.Concat(callbackColumns, []output.Column[api.Callback]{secret}, callbackDetails))
}

func (a *app) callbacksUpdateCommand() *cobra.Command {
	var events []string
	var receiver string
	var suspend, resume bool
	cmd := &cobra.Command{
		Use: "update CALLBACK", Short: "Change, suspend or resume a callback", Args: cobra.ExactArgs(1),
		Long: `Change, suspend or resume a callback. The events of one that is suspended wait. With another receiver, and when it is resumed,
its receiver is asked for its consent.`,
		Example:     "  cloudfn callbacks update CALLBACK --suspend\n  cloudfn callbacks update CALLBACK --events \"\"   # all",
		Annotations: calls("changeCallback"), ValidArgsFunction: first(a.complete(a.callbackIDs)),
		RunE: func(cmd *cobra.Command, args []string) error {
			change := api.CallbackChange{URL: optional(receiver)}
			if cmd.Flags().Changed("events") {
				change.Events = types(events)
			}
			switch {
			case suspend:
				change.Status = optional(api.CallbackChangeStatusSuspended)
			case resume:
				change.Status = optional(api.CallbackChangeStatusVerified)
			}
			client, err := a.api(cmd.Context())
			if err != nil {
				return err
			}
			changed, _, err := api.Send[api.Callback](cmd.Context(), client, http.MethodPatch, callbackPath(args[0]), change)
			if err != nil {
				return err
			}
			return a.printCallback(changed)
		},
	}
	cmd.Flags().StringVar(&receiver, "receiver", "", "send to this URL instead")
	eventsFlag(cmd, &events)
	cmd.Flags().BoolVar(&suspend, "suspend", false, "deliver nothing until it is resumed")
	cmd.Flags().BoolVar(&resume, "resume", false, "deliver again")
	cmd.MarkFlagsMutuallyExclusive("suspend", "resume")
	cmd.MarkFlagsOneRequired("receiver", "events", "suspend", "resume")
	return cmd
}

func (a *app) rotateSecretCommand() *cobra.Command {
	var overlap, secretFile string
	cmd := &cobra.Command{
		Use: "rotate-secret CALLBACK", Short: "Give a callback another secret", Args: cobra.ExactArgs(1),
		Long:        "Give a callback another secret. The one before signs too for a while, so that the receiver has time to change.",
		Annotations: calls("rotateCallbackSecret"), ValidArgsFunction: first(a.complete(a.callbackIDs)),
		RunE: func(cmd *cobra.Command, args []string) error {
			rotation := api.CallbackRotation{Overlap: optional(overlap)}
			if err := a.giveSecret(cmd, secretFile, &rotation.Secret); err != nil {
				return err
			}
			client, err := a.api(cmd.Context())
			if err != nil {
				return err
			}
			made, _, err := api.Send[api.CallbackWithSecret](cmd.Context(), client, http.MethodPost, callbackPath(args[0], "secret"), rotation)
			if err != nil {
				return err
			}
			return a.printWithSecret(made)
		},
	}
	cmd.Flags().StringVar(&overlap, "overlap", "", "how long the secret before signs too: 0s to 168h (default 24h)")
	secretFlag(cmd, &secretFile)
	return cmd
}
