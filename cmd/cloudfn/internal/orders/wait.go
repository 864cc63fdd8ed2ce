package orders

import (
	"context"
	"slices"
	"time"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
)

// Waiter waits for the end of an order, and shows its progress meanwhile.
type Waiter struct {
	ID, Connection string
	Limit          time.Duration
	Launched       *api.Item[api.Order] // the answer to its launch; nil = unknown
	// Resend launches the order again when nobody works on it any more; nil = only whoever launched it can.
	Resend func(context.Context) (api.Item[api.Order], error)
}

// Wait gives the order as it ended.
func (w Waiter) Wait(ctx context.Context, a *cli.App) (order api.Item[api.Order], err error) {
	show, stop := a.Progress(ctx)
	defer stop()
	if w.Launched != nil {
		order = *w.Launched
		show(instanceRows(order.Value)...)
	}
	err = cli.Poll(ctx, w.Limit, func(ctx context.Context) (bool, error) {
		found, err := Get(ctx, a, w.ID, w.Connection)
		if err != nil {
			return false, err
		}
		order = found
		if isInterrupted(order.Value) {
			if w.Resend == nil {
				return false, exit.Failedf("order %s was interrupted, and nobody works on it: "+
					"give the same launch again with --id %s", w.ID, w.ID)
			}
			resent, err := w.Resend(ctx)
			if err != nil {
				return false, err
			}
			order = resent
		}
		show(instanceRows(order.Value)...)
		return order.Value.Status != api.OrderStatusRunning, nil
	}, func() string { return FollowHint(a, w.ID, w.Connection) })
	return order, err
}

// FollowHint says how to follow an order.
func FollowHint(a *cli.App, id, connection string) string {
	hint := "follow it by " + a.Name + " orders show " + id + " --wait"
	if connection != "" {
		hint += " --connection " + connection
	}
	return hint
}

// isInterrupted reports whether an order stays as it is until somebody launches it again.
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
		row := output.Row{Name: i.Name, State: string(i.State), IsFinal: isFinal(i.State), Note: cli.Value(i.ServerID)}
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

// isFinal reports whether a state stays as it is while nobody does anything.
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
