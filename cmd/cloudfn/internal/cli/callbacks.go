package cli

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
	"github.com/cloudfn/cloudfn/shared/domain"
)

var eventTypes = domain.EventTypes()

func (a *app) callbacksCommand() *cobra.Command {
	return group("callbacks", "Have events sent to a URL, and see how that goes",
		a.callbacksListCommand(), a.callbacksShowCommand(), a.callbacksCreateCommand(), a.callbacksUpdateCommand(), a.callbacksDeleteCommand(),
		a.rotateSecretCommand(), a.callbacksTestCommand(), a.deliveriesCommand(), a.redeliverCommand(), a.listenCommand())
}

// callbackPath is where a callback is, and what is of it.
func callbackPath(id string, more ...string) string {
	parts := []string{"/v1/callbacks", url.PathEscape(id)}
	for _, part := range more {
		parts = append(parts, url.PathEscape(part))
	}
	return strings.Join(parts, "/")
}

func (a *app) callbacksListCommand() *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the project's callbacks", Args: cobra.NoArgs,
		Annotations: calls("listCallbacks"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			found, err := a.callbacks(cmd.Context())
			if err != nil {
				return err
			}
			return output.List(&a.print, found, callbackID, callbackColumns)
		},
	}
}

func (a *app) callbacks(ctx context.Context) ([]api.Item[api.Callback], error) {
	client, err := a.api(ctx)
	if err != nil {
		return nil, err
	}
	return api.List[api.Callback](ctx, client, "/v1/callbacks", nil, "callbacks", 0)
}

// callbackIDs are for completion.
func (a *app) callbackIDs(ctx context.Context) ([]string, error) {
	found, err := a.callbacks(ctx)
	var ids []string
	for _, c := range found {
		ids = append(ids, c.Value.ID+"\t"+string(c.Value.Status)+", "+c.Value.URL)
	}
	return ids, err
}

func (a *app) callbacksShowCommand() *cobra.Command {
	return &cobra.Command{
		Use: "show CALLBACK", Short: "Show a callback", Args: cobra.ExactArgs(1),
		Annotations: calls("getCallback"), ValidArgsFunction: first(a.complete(a.callbackIDs)),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := a.api(cmd.Context())
			if err != nil {
				return err
			}
			found, err := api.One[api.Callback](cmd.Context(), client, callbackPath(args[0]), nil)
			if err != nil {
				return err
			}
			return a.printCallback(found)
		},
	}
}

func (a *app) printCallback(c api.Item[api.Callback]) error {
	return output.One(&a.print, c, callbackID, slices.Concat(callbackColumns, callbackDetails))
}

func (a *app) callbacksDeleteCommand() *cobra.Command {
	return &cobra.Command{
		Use: "delete CALLBACK...", Short: "Delete a callback and all that waits for it", Args: cobra.MinimumNArgs(1),
		Annotations: calls("deleteCallback"), ValidArgsFunction: a.complete(a.callbackIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := a.api(cmd.Context())
			if err != nil {
				return err
			}
			return a.each(args, func(id string) error {
				_, err := client.Do(cmd.Context(), http.MethodDelete, callbackPath(id), nil, nil)
				return err
			})
		},
	}
}

func (a *app) callbacksTestCommand() *cobra.Command {
	return &cobra.Command{
		Use: "test CALLBACK", Short: "Send a callback an event, to try its receiver", Args: cobra.ExactArgs(1),
		Long: `Send a callback an event of the type cloudfn.callback.test.v1, to try its receiver. What became of it is in its deliveries.`, Annotations: calls("testCallback"),
		ValidArgsFunction: first(a.complete(a.callbackIDs)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.deliver(cmd.Context(), callbackPath(args[0], "test"))
		},
	}
}

// deliver asks for a delivery, and shows it.
func (a *app) deliver(ctx context.Context, path string) error {
	client, err := a.api(ctx)
	if err != nil {
		return err
	}
	made, _, err := api.Send[api.Delivery](ctx, client, http.MethodPost, path, nil)
	if err != nil {
		return err
	}
	return output.One(&a.print, made, deliveryID, deliveryColumns)
}

func (a *app) deliveriesCommand() *cobra.Command {
	var status string
	var most int
	cmd := &cobra.Command{
		Use: "deliveries CALLBACK", Short: "List what was and is to be delivered, the newest first", Args: cobra.ExactArgs(1),
		Annotations: calls("listDeliveries"), ValidArgsFunction: first(a.complete(a.callbackIDs)), Example: "  cloudfn callbacks deliveries CALLBACK --status dead",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkLimit(most); err != nil {
				return err
			}
			found, err := a.deliveries(cmd.Context(), args[0], status, most)
			if err != nil {
				return err
			}
			return output.List(&a.print, found, deliveryID, deliveryColumns)
		},
	}
	statuses := []string{"due", "delivered", "dead"}
	cmd.Flags().StringVar(&status, "status", "", "only those that are "+strings.Join(statuses, ", "))
	limitFlag(cmd, &most, 0)
	_ = cmd.RegisterFlagCompletionFunc("status", cobra.FixedCompletions(statuses, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (a *app) deliveries(ctx context.Context, callback, status string, most int) ([]api.Item[api.Delivery], error) {
	client, err := a.api(ctx)
	if err != nil {
		return nil, err
	}
	query := url.Values{}
	if status != "" {
		query.Set("status", status)
	}
	return api.List[api.Delivery](ctx, client, callbackPath(callback, "deliveries"), query, "deliveries", most)
}

func (a *app) redeliverCommand() *cobra.Command {
	return &cobra.Command{
		Use: "redeliver CALLBACK DELIVERY...", Short: "Deliver events again", Args: cobra.MinimumNArgs(2),
		Annotations: calls("redeliver"), ValidArgsFunction: a.completeRedeliver,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.each(args[1:], func(id string) error {
				return a.deliver(cmd.Context(), callbackPath(args[0], "deliveries", id, "redeliver"))
			})
		},
	}
}

// completeRedeliver offers callbacks first, and then those of its deliveries that are not on their way.
func (a *app) completeRedeliver(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return a.complete(a.callbackIDs)(cmd, args, toComplete)
	}
	return a.complete(func(ctx context.Context) ([]string, error) {
		found, err := a.deliveries(ctx, args[0], "", 50)
		var ids []string
		for _, d := range found {
			if d.Value.Status != api.Due {
				ids = append(ids, d.Value.ID+"\t"+string(d.Value.Status)+", "+d.Value.EventType)
			}
		}
		return ids, err
	})(cmd, args, toComplete)
}

func callbackID(c api.Callback) string { return c.ID }

func deliveryID(d api.Delivery) string { return d.ID }

var callbackColumns = []output.Column[api.Callback]{
	{Title: "ID", Text: callbackID},
	{Title: "STATUS", State: true, Text: func(c api.Callback) string { return string(c.Status) }},
	{Title: "URL", Text: func(c api.Callback) string { return c.URL }},
	{Title: "EVENTS", Wide: true, Text: func(c api.Callback) string { return joined(c.Events) }},
	{Title: "OF", Text: func(c api.Callback) string { return scopeOf(c) }},
	{Title: "CREATED", Wide: true, Text: func(c api.Callback) string { return stamp(c.CreatedAt) }},
}

// callbackDetails are what only one callback shows.
var callbackDetails = []output.Column[api.Callback]{
	{Title: "REASON", Text: func(c api.Callback) string { return value(c.Reason) }},
	{Title: "RATE", Text: func(c api.Callback) string {
		if c.AllowedRate == nil {
			return ""
		}
		return strconv.Itoa(*c.AllowedRate) + " a minute"
	}},
	{Title: "SECRET_BEFORE_UNTIL", Text: func(c api.Callback) string { return stamp(value(c.PreviousSecretUntil)) }},
}

// scopeOf is what a callback hears of.
func scopeOf(c api.Callback) string {
	text := "project"
	switch {
	case c.OrderID != nil:
		text = "order " + *c.OrderID
	case c.InstanceID != nil:
		text = "instance " + *c.InstanceID
	}
	if c.ConnectionID != nil {
		text = strings.TrimPrefix(text, "project") + " connection " + *c.ConnectionID
	}
	return strings.TrimSpace(text)
}

var deliveryColumns = []output.Column[api.Delivery]{
	{Title: "ID", Text: deliveryID},
	{Title: "STATUS", State: true, Text: func(d api.Delivery) string { return string(d.Status) }},
	{Title: "TYPE", Text: func(d api.Delivery) string { return d.EventType }},
	{Title: "SUBJECT", Text: func(d api.Delivery) string { return d.Subject }},
	{Title: "ATTEMPTS", Text: func(d api.Delivery) string { return strconv.Itoa(d.Attempts) }},
	{Title: "ANSWER", Text: func(d api.Delivery) string {
		if d.Answer == nil {
			return ""
		}
		return strconv.Itoa(*d.Answer)
	}},
	{Title: "CREATED", Text: func(d api.Delivery) string { return stamp(d.CreatedAt) }},
	{Title: "EVENT", Wide: true, Text: func(d api.Delivery) string { return d.EventID }},
	{Title: "ATTEMPTED", Wide: true, Text: func(d api.Delivery) string { return stamp(value(d.AttemptedAt)) }},
	{Title: "ERROR", Wide: true, Text: func(d api.Delivery) string { return value(d.Error) }},
}
