// Package orders holds the commands that follow launches.
package orders

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
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
	"github.com/cloudfn/cloudfn/shared/domain"
)

var orders = cli.Noun[api.Order]{
	Path: "/v1/launch", Key: "orders", Arg: "ORDER",
	Ref: func(o api.Order) (id, called string, isOver bool) {
		if len(o.Instances) > 0 {
			called = cmp.Or(commonName(o), o.Instances[0].Name)
		}
		return o.ID, called, o.Status != api.OrderStatusRunning
	},
	Within: func(cmd *cobra.Command) url.Values { return cli.Query(cmd.Flags(), "connection:connection_id") },
	Offer:  func(o api.Order) string { return o.ID + "\t" + name(o) + ", " + string(o.Status) },
	Below: func(a *cli.App, o api.Item[api.Order]) error {
		return output.Below(&a.Print, o.Value.Instances, instanceTable)
	},
	Table: output.Table[api.Order]{
		Columns: []string{"ID", "NAME", "STATUS*", "SERVERS", "CREATED:created_at", "CONNECTION+:connection_id"},
		Details: []string{"KEY", "CALLBACK:callback.id", "CALLBACK_SECRET:callback.secret"},
		Texts:   map[string]func(api.Order) string{"NAME": name, "SERVERS": states, "KEY": key},
	},
}

var instanceTable = output.Table[api.Instance]{
	Columns: []string{
		"NAME", "STATE*", "SERVER:server_id", "INSTANCE:id", "FLOATING_IP", "KEY+:key_name", "ERROR:error.detail",
	},
}

// Command holds the commands for orders.
func Command(a *cli.App) *cobra.Command {
	return cli.Group("orders", "Follow launches", list(a), show(a))
}

func list(a *cli.App) *cobra.Command {
	cmd := orders.List(a, "List the project's orders, the newest first", "listOrders",
		"status", "connection:connection_id")
	cmd.Example = "  cloudfn orders list --status running,partial"
	cli.Statuses(cmd, domain.OrderStatuses(), "")
	a.ConnectionFlag(cmd, "those that were placed through this connection")
	cli.LimitFlag(cmd, 0)
	return cmd
}

func show(a *cli.App) *cobra.Command {
	var wait cli.Wait
	run := func(cmd *cobra.Command, id string) error {
		connection, _ := cmd.Flags().GetString("connection")
		order, err := Waiter{ID: id, Connection: connection, Flags: wait}.Wait(cmd.Context(), a)
		if err == nil {
			err = Print(a, order)
		}
		if err != nil || !wait.IsOn {
			return err
		}
		return Result(a, order.Value)
	}
	cmd := orders.One(a, "show", "Show an order and its servers", "getOrder", run)
	cmd.Long = `Show an order and its servers. ORDER is its id, or the name of its servers: web, also for web-1 and
web-2. Of several orders of a name it is the one that runs. With --wait the exit code reports whether all servers were
launched.`
	cmd.ValidArgsFunction = a.Complete(1, Finder(a))
	wait.Flags(cmd, "the order has ended")
	a.ConnectionFlag(cmd, "the connection that it was placed through")
	return cmd
}

// Finder completes the newest orders.
func Finder(a *cli.App) cli.Finder { return orders.Finder(a, nil, 50) }

// Get reads an order, of the caller's project or through a connection.
func Get(ctx context.Context, a *cli.App, id, connection string) (api.Item[api.Order], error) {
	return orders.Get(ctx, a, id, cli.ConnectionQuery(connection))
}

// Print prints an order. A private key stays in its file.
func Print(a *cli.App, order api.Item[api.Order]) error {
	if order.Value.PrivateKey != nil {
		order.Raw = edit(order.Raw, func(fields map[string]json.RawMessage) { delete(fields, "private_key") })
	}
	return orders.Print(a, order)
}

// WithSecret adds to an order what only the answer to its launch has: the secret of its callback.
func WithSecret(order api.Item[api.Order], launched *api.OrderCallback) api.Item[api.Order] {
	if launched == nil || launched.Secret == nil {
		return order
	}
	if order.Value.Callback != nil {
		order.Value.Callback.Secret = launched.Secret
	}
	order.Raw = edit(order.Raw, func(fields map[string]json.RawMessage) {
		fields["callback"] = edit(fields["callback"], func(callback map[string]json.RawMessage) {
			callback["secret"], _ = json.Marshal(launched.Secret)
		})
	})
	return order
}

// edit changes the fields of an object.
func edit(raw json.RawMessage, change func(map[string]json.RawMessage)) json.RawMessage {
	fields := map[string]json.RawMessage{}
	if len(raw) > 0 && json.Unmarshal(raw, &fields) != nil {
		return raw
	}
	change(fields)
	text, err := json.Marshal(fields)
	if err != nil {
		return raw
	}
	return text
}

// key is the key pair of an order's servers.
func key(o api.Order) string {
	if len(o.Instances) == 0 {
		return ""
	}
	return domain.Deref(o.Instances[0].KeyName)
}

// name is that of the only server, or what the servers were numbered from: guest for guest-1 and guest-2. Of others it
// is the first one's, and how many more there are.
func name(o api.Order) string {
	if base := commonName(o); base != "" || len(o.Instances) == 0 {
		return base
	}
	return fmt.Sprintf("%s (and %d more)", o.Instances[0].Name, len(o.Instances)-1)
}

// commonName is that of the only server, or what all were numbered from; "" = neither.
func commonName(o api.Order) string {
	switch len(o.Instances) {
	case 0:
		return ""
	case 1:
		return o.Instances[0].Name
	}
	base := unnumbered(o.Instances[0])
	if slices.ContainsFunc(o.Instances, func(i api.Instance) bool { return unnumbered(i) != base }) {
		return ""
	}
	return base
}

// unnumbered is an instance's name before its number; "" = it has none.
func unnumbered(i api.Instance) string {
	at := strings.LastIndex(i.Name, "-")
	if at < 0 || at == len(i.Name)-1 || strings.Trim(i.Name[at+1:], "0123456789") != "" {
		return ""
	}
	return i.Name[:at]
}

// states counts an order's servers by their states.
func states(o api.Order) string {
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

// Waiter waits for the end of an order, and shows its progress meanwhile.
type Waiter struct {
	ID, Connection string
	Flags          cli.Wait
	Launched       api.Item[api.Order] // the answer to its launch, if that is known
	// Resend launches the order again when no one works on it any longer; nil = only its launcher can.
	Resend func(context.Context) (api.Item[api.Order], error)
}

// Wait gives the order as it ended.
func (w Waiter) Wait(ctx context.Context, a *cli.App) (api.Item[api.Order], error) {
	return cli.Waiter[api.Item[api.Order]]{
		Get: func(ctx context.Context) (api.Item[api.Order], error) {
			order, err := Get(ctx, a, w.ID, w.Connection)
			if err == nil && w.Resend != nil && isInterrupted(order.Value) {
				return w.Resend(ctx)
			}
			return order, err
		},
		Done: func(o api.Item[api.Order]) (bool, error) {
			if isInterrupted(o.Value) && w.Resend == nil {
				return false, exit.Failedf("order %s was interrupted, and no one works on it: "+
					"give the same launch again with --id %s", w.ID, w.ID)
			}
			return o.Value.Status != api.OrderStatusRunning, nil
		},
		Rows:      func(o api.Item[api.Order]) []output.Row { return instanceRows(o.Value) },
		Remaining: func(api.Item[api.Order]) string { return FollowHint(a, w.ID, w.Connection) },
	}.Wait(ctx, a, w.Flags, w.Launched)
}

// FollowHint says how to follow an order.
func FollowHint(a *cli.App, id, connection string) string {
	advice := "follow it by " + a.Name + " orders show " + id + " --wait"
	if connection != "" {
		advice += " --connection " + connection
	}
	return advice
}

// isInterrupted reports whether an order stays as it is until someone launches it again.
func isInterrupted(o api.Order) bool {
	return o.Status == api.OrderStatusRunning && slices.ContainsFunc(o.Instances, func(i api.Instance) bool {
		return i.Error != nil && i.Error.Code == api.InstanceErrorCodeInterrupted
	})
}

// instanceRows is a row for each instance. Instances of the same name also show their ids.
func instanceRows(o api.Order) []output.Row {
	count := map[string]int{}
	for _, i := range o.Instances {
		count[i.Name]++
	}
	rows := make([]output.Row, len(o.Instances))
	for n, i := range o.Instances {
		note := domain.Deref(i.ServerID)
		row := output.Row{Name: i.Name, State: string(i.State), Note: note, IsFinal: isFinal(i.State)}
		if count[i.Name] > 1 {
			row.Name += " " + i.ID
		}
		if i.Error != nil {
			row.Note = i.Error.Detail
		}
		rows[n] = row
	}
	return rows
}

// isFinal reports whether a state stays as it is while no one does anything.
func isFinal(s api.InstanceState) bool {
	switch s {
	case api.InstanceStateRequested, api.InstanceStateBuilding, api.InstanceStateUpdating, api.InstanceStateRebooting,
		api.InstanceStateDeleting:
		return false
	}
	return true
}

// Result prints a line for each failed server, and is the order's failure, if it failed.
func Result(a *cli.App, o api.Order) error {
	failed := 0
	for _, i := range o.Instances {
		if i.Error != nil {
			failed++
			a.Notef("%s: %s (%s)", i.Name, i.Error.Detail, i.Error.Code)
		}
	}
	if o.Error != nil {
		a.Notef("order: %s (%s)", o.Error.Detail, o.Error.Code)
	}
	switch o.Status {
	case api.OrderStatusDone, api.OrderStatusRunning:
		return nil
	case api.OrderStatusRolledBack:
		return exit.Failedf("order %s is rolled back: not all of its servers could be launched", o.ID)
	}
	const format = "order %s is %s: %d of %d servers could not be launched"
	return exit.Failedf(format, o.ID, o.Status, failed, len(o.Instances))
}
