// Package callbacks holds the commands for webhook subscriptions and their deliveries.
package callbacks

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/orders"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/servers"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// callback has its secret only in the answer to the request that set it.
type callback struct {
	api.Callback
	Secret string `json:"secret,omitempty"`
}

var callbacks = cli.Noun[callback]{
	Path: "/v1/callbacks", Key: "callbacks", Arg: "CALLBACK",
	Ref:   func(c callback) (id, name string, isOver bool) { return c.ID, "", false },
	Offer: func(c callback) string { return c.ID + "\t" + string(c.Status) + ", " + host(c.URL) },
	Table: output.Table[callback]{
		Columns: []string{"ID", "STATUS*", "URL", "EVENTS+", "OF", "CREATED+:created_at"},
		Details: []string{"SECRET", "REASON", "RATE", "SECRET_BEFORE_UNTIL:previous_secret_until"},
		Texts:   map[string]func(callback) string{"OF": scope, "RATE": rate},
	},
}

// host is that of a URL, whose rest may be a secret: completions are kept in files.
func host(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return u.Host
}

// scope says whose events a callback gets.
func scope(c callback) string {
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

func rate(c callback) string {
	if c.AllowedRate == nil {
		return ""
	}
	return strconv.Itoa(*c.AllowedRate) + " a minute"
}

// Command holds the commands for callbacks.
func Command(a *cli.App) *cobra.Command {
	return cli.Group("callbacks", "Subscribe URLs to events, and inspect the deliveries",
		callbacks.List(a, "List the project's callbacks", "listCallbacks"),
		callbacks.Show(a, "Show a callback", "getCallback"),
		create(a), update(a),
		callbacks.Delete(a, "Delete callbacks and their pending deliveries", "deleteCallback"),
		rotateSecret(a), test(a), deliveries(a), showDelivery(a), redeliver(a), listen(a))
}

func test(a *cli.App) *cobra.Command {
	cmd := callbacks.One(a, "test", "Send a callback an event, to try its receiver", "testCallback",
		func(cmd *cobra.Command, id string) error { return deliver(cmd.Context(), a, callbacks.URL(id, "test")) })
	cmd.Long = "Send a callback an event of the type cloudfn.callback.test.v1. Its deliveries show the result."
	return cmd
}

var deliveryTable = output.Table[api.Delivery]{Columns: []string{
	"ID", "STATUS*", "TYPE:event_type", "SUBJECT", "ATTEMPTS", "ANSWER", "CREATED:created_at", "EVENT+:event_id",
	"ATTEMPTED+:attempted_at", "ERROR+",
}}

// deliveriesOf are the deliveries of one callback.
func deliveriesOf(callback string) cli.Noun[api.Delivery] {
	return cli.Noun[api.Delivery]{
		Path: callbacks.URL(callback, "deliveries"), Key: "deliveries", Table: deliveryTable,
	}
}

// delivery is one with its event.
type delivery struct {
	api.Delivery
	Event json.RawMessage `json:"event"`
}

// showDelivery shows a delivery, and its event below.
func showDelivery(a *cli.App) *cobra.Command {
	one := cli.Noun[delivery]{
		Table: output.Table[delivery]{Columns: deliveryTable.Columns},
		Below: func(a *cli.App, item api.Item[delivery]) error {
			var event bytes.Buffer
			if err := json.Indent(&event, item.Value.Event, "", "  "); err != nil {
				return err
			}
			_, err := fmt.Fprintf(a.Print.Out, "\n%s\n", output.Escape(event.Bytes()))
			return err
		},
	}
	return &cobra.Command{
		Use: "delivery CALLBACK DELIVERY", Short: "Show a delivery with its event", Args: cobra.ExactArgs(2),
		Annotations: cli.Calls("getDelivery"), ValidArgsFunction: a.Complete(2, completeDelivery(a, true)),
		RunE: func(cmd *cobra.Command, args []string) error {
			callback, err := callbacks.Resolve(cmd.Context(), a, args[0], nil)
			if err != nil {
				return err
			}
			return one.Send(cmd.Context(), a, http.MethodGet, callbacks.URL(callback, "deliveries", args[1]), nil)
		},
	}
}

// deliver requests a delivery, and prints it.
func deliver(ctx context.Context, a *cli.App, path string) error {
	return cli.Noun[api.Delivery]{Table: deliveryTable}.SendOnce(ctx, a, path, nil)
}

func deliveries(a *cli.App) *cobra.Command {
	cmd := callbacks.One(a, "deliveries", "List a callback's deliveries, the newest first", "listDeliveries",
		func(cmd *cobra.Command, id string) error {
			return deliveriesOf(id).PrintList(cmd, a, cli.Query(cmd.Flags(), "status"))
		})
	cmd.Example = "  cloudfn callbacks deliveries CALLBACK --status dead"
	statuses := []string{string(api.Due), string(api.Delivered), string(api.Dead)}
	cmd.Flags().String("status", "", "only those that are "+strings.Join(statuses, ", "))
	cli.Choices(cmd, "status", statuses...)
	cli.LimitFlag(cmd, 0)
	return cmd
}

func redeliver(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use: "redeliver CALLBACK DELIVERY...", Short: "Deliver events once more", Args: cobra.MinimumNArgs(2),
		Annotations: cli.Calls("redeliver"), ValidArgsFunction: a.Complete(0, completeDelivery(a, false)),
		RunE: func(cmd *cobra.Command, args []string) error {
			callback, err := callbacks.Resolve(cmd.Context(), a, args[0], nil)
			if err != nil {
				return err
			}
			return a.Each(args[1:], func(id string) error {
				return deliver(cmd.Context(), a, callbacks.URL(callback, "deliveries", id, "redeliver"))
			})
		},
	}
}

// completeDelivery completes a callback, and then its deliveries: all, or those that are not pending.
func completeDelivery(a *cli.App, all bool) cli.Finder {
	return func(ctx context.Context, args []string, begun string) ([]string, error) {
		if len(args) == 0 {
			return callbacks.Finder(a, nil, 0)(ctx, args, begun)
		}
		return a.Cached(fmt.Sprint("deliveries ", args[0], all), func(ctx context.Context) (ids []string, err error) {
			found, err := deliveriesOf(args[0]).Find(ctx, a, nil, 50)
			for _, d := range found {
				if all || d.Value.Status != api.Due {
					ids = append(ids, d.Value.ID+"\t"+string(d.Value.Status)+", "+d.Value.EventType)
				}
			}
			return ids, err
		})(ctx, args, begun)
	}
}

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
		Long: `Subscribe a URL to events. cloudfn asks its receiver for consent immediately; cloudfn callbacks listen is
a receiver for trials. The secret that events are signed with is shown this once.`,
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
