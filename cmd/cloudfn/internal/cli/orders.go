package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
)

var orderStatuses = []string{"running", "done", "partial", "failed", "rolled_back"}

func (a *app) ordersCommand() *cobra.Command {
	return group("orders", "Follow launches", a.ordersListCommand(), a.ordersShowCommand())
}

func (a *app) ordersListCommand() *cobra.Command {
	var statuses []string
	var connection string
	var most int
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the project's orders, the newest first", Args: cobra.NoArgs,
		Annotations: calls("listOrders"), Example: "  cloudfn orders list --status running,partial",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkLimit(most); err != nil {
				return err
			}
			client, err := a.api(cmd.Context())
			if err != nil {
				return err
			}
			found, err := a.orders(cmd.Context(), client, statuses, connection, most)
			if err != nil {
				return err
			}
			return output.List(&a.print, found, func(o api.Order) string { return o.ID }, orderColumns)
		},
	}
	cmd.Flags().StringSliceVar(&statuses, "status", nil, "only those that are "+strings.Join(orderStatuses, ", "))
	cmd.Flags().StringVar(&connection, "connection", "", "those that were placed through this connection")
	limitFlag(cmd, &most, 0)
	_ = cmd.RegisterFlagCompletionFunc("status", cobra.FixedCompletions(orderStatuses, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("connection", a.complete(a.usableConnections))
	return cmd
}

func (a *app) orders(ctx context.Context, client *api.Client, statuses []string, connection string, most int) ([]api.Item[api.Order], error) {
	query := url.Values{}
	if len(statuses) > 0 {
		query.Set("status", strings.Join(statuses, ","))
	}
	if connection != "" {
		query.Set("connection_id", connection)
	}
	return api.List[api.Order](ctx, client, "/v1/launch", query, "orders", most)
}

func (a *app) ordersShowCommand() *cobra.Command {
	var wait waiting
	var connection string
	cmd := &cobra.Command{
		Use: "show ORDER", Short: "Show an order and its servers", Args: cobra.ExactArgs(1),
		Long:        "Show an order and its servers. With --wait the exit code says whether all of them could be had.",
		Annotations: calls("getOrder"), ValidArgsFunction: first(a.complete(a.orderIDs)),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := a.api(cmd.Context())
			if err != nil {
				return err
			}
			p := pursuit{client: client, id: args[0], connection: connection, limit: wait.limit}
			if !wait.on {
				order, err := p.look(cmd.Context())
				if err != nil {
					return err
				}
				return a.printOrder(order)
			}
			order, err := a.await(cmd.Context(), p)
			if err != nil {
				return err
			}
			if err := a.printOrder(order); err != nil {
				return err
			}
			return a.outcome(order.Value)
		},
	}
	wait.flags(cmd, "it is settled")
	cmd.Flags().StringVar(&connection, "connection", "", "the connection that it was placed through")
	_ = cmd.RegisterFlagCompletionFunc("connection", a.complete(a.usableConnections))
	return cmd
}

// first completes the first argument only.
func first(f cobra.CompletionFunc) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return f(cmd, args, toComplete)
	}
}

// orderIDs are the newest orders, for completion.
func (a *app) orderIDs(ctx context.Context) ([]string, error) {
	client, err := a.api(ctx)
	if err != nil {
		return nil, err
	}
	found, err := a.orders(ctx, client, nil, "", 50)
	var ids []string
	for _, o := range found {
		ids = append(ids, o.Value.ID+"\t"+orderName(o.Value)+", "+string(o.Value.Status))
	}
	return ids, err
}

// printOrder prints an order, and in a table's place also one of its servers. A private key is in its file, and nowhere else.
func (a *app) printOrder(order api.Item[api.Order]) error {
	if order.Value.PrivateKey != nil {
		order.Raw = edited(order.Raw, func(fields map[string]json.RawMessage) { delete(fields, "private_key") })
	}
	if err := output.One(&a.print, order, func(o api.Order) string { return o.ID }, slices.Concat(orderColumns, orderDetails)); err != nil {
		return err
	}
	if a.print.Format != "table" && a.print.Format != "wide" || len(a.print.Columns) > 0 || len(order.Value.Instances) == 0 {
		return nil
	}
	fmt.Fprintln(a.out)
	items := make([]api.Item[api.Instance], len(order.Value.Instances))
	for n, i := range order.Value.Instances {
		items[n].Value = i
	}
	return output.List(&a.print, items, nil, instanceColumns)
}

var orderColumns = []output.Column[api.Order]{
	{Title: "ID", Text: func(o api.Order) string { return o.ID }},
	{Title: "NAME", Text: orderName},
	{Title: "STATUS", State: true, Text: func(o api.Order) string { return string(o.Status) }},
	{Title: "SERVERS", Text: orderServers},
	{Title: "CREATED", Text: func(o api.Order) string { return stamp(o.CreatedAt) }},
	{Title: "CONNECTION", Wide: true, Text: func(o api.Order) string { return value(o.ConnectionID) }},
}

// orderDetails are what only one order shows.
var orderDetails = []output.Column[api.Order]{
	{Title: "CALLBACK", Text: func(o api.Order) string { return value(o.Callback).ID }},
	{Title: "CALLBACK_SECRET", Text: func(o api.Order) string { return value(value(o.Callback).Secret) }},
}

var instanceColumns = []output.Column[api.Instance]{
	{Title: "NAME", Text: func(i api.Instance) string { return i.Name }},
	{Title: "STATE", State: true, Text: func(i api.Instance) string { return string(i.State) }},
	{Title: "SERVER", Text: func(i api.Instance) string { return value(i.ServerID) }},
	{Title: "INSTANCE", Text: func(i api.Instance) string { return i.ID }},
	{Title: "KEY", Wide: true, Text: func(i api.Instance) string { return value(i.KeyName) }},
	{Title: "ERROR", Text: func(i api.Instance) string { return value(i.Error).Detail }},
}

// orderName is what its servers are called: the first one's name, and how many there are besides.
func orderName(o api.Order) string {
	switch len(o.Instances) {
	case 0:
		return ""
	case 1:
		return o.Instances[0].Name
	}
	return fmt.Sprintf("%s (and %d more)", o.Instances[0].Name, len(o.Instances)-1)
}

// orderServers counts an order's servers by their states.
func orderServers(o api.Order) string {
	counts := map[string]int{}
	for _, i := range o.Instances {
		counts[string(i.State)]++
	}
	states := slices.SortedFunc(maps.Keys(counts), func(x, y string) int {
		return cmp.Or(cmp.Compare(counts[y], counts[x]), cmp.Compare(x, y))
	})
	for n, state := range states {
		states[n] = fmt.Sprintf("%d %s", counts[state], state)
	}
	return strings.Join(states, ", ")
}
