package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"sync"
	"time"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
)

// pursuit is an order that is waited for.
type pursuit struct {
	client         *api.Client
	id, connection string
	limit          time.Duration
	first          *api.Item[api.Order] // as it is known already; nil = it is not
	// resend sends the order again when nobody works on it any more; nil = it is not known here what was ordered.
	resend func(context.Context) (api.Item[api.Order], error)
}

func (p pursuit) look(ctx context.Context) (api.Item[api.Order], error) {
	return api.One[api.Order](ctx, p.client, "/v1/launch/"+url.PathEscape(p.id), through(p.connection))
}

// through is the query of a request through a connection, if there is one.
func through(connection string) url.Values {
	if connection == "" {
		return nil
	}
	return url.Values{"connection_id": {connection}}
}

// await waits until an order is settled, and shows meanwhile how it goes.
func (a *app) await(ctx context.Context, p pursuit) (order api.Item[api.Order], err error) {
	show, stop := a.progress(ctx)
	defer stop()
	if p.first != nil {
		order = *p.first
		show(order.Value)
	}
	err = until(ctx, p.limit, func(ctx context.Context) (bool, error) {
		if p.first == nil || order.Raw != nil {
			found, err := p.look(ctx)
			if err != nil {
				return false, err
			}
			order = found
		}
		if stalled(order.Value) {
			if p.resend == nil {
				return false, failed{fmt.Errorf("order %s was interrupted, and nobody works on it: give the same launch again with --id %s", p.id, p.id)}
			}
			again, err := p.resend(ctx)
			if err != nil {
				return false, err
			}
			order = again
		}
		show(order.Value)
		return order.Value.Status != api.OrderStatusRunning, nil
	}, func() string { return a.followHint(p.id, p.connection) })
	return order, err
}

// stalled says whether an order will not go on by itself.
func stalled(o api.Order) bool {
	if o.Status != api.OrderStatusRunning {
		return false
	}
	for _, i := range o.Instances {
		if i.Error != nil && i.Error.Code == api.InstanceErrorCodeInterrupted {
			return true
		}
	}
	return false
}

// progress shows an order on stderr, where it is no part of the result. At a terminal the time goes on between two looks.
func (a *app) progress(ctx context.Context) (show func(api.Order), stop func()) {
	p := output.Progress{Out: a.err, Color: a.size != nil && a.colors, Size: a.size, Began: a.now()}
	var lock sync.Mutex
	var rows []output.Row
	draw := func() {
		lock.Lock()
		defer lock.Unlock()
		p.Show(a.now(), rows)
	}
	ctx, cancel := context.WithCancel(ctx)
	var clock sync.WaitGroup
	if a.size != nil {
		clock.Go(func() {
			for tick := time.NewTicker(time.Second); ; {
				select {
				case <-tick.C:
					draw()
				case <-ctx.Done():
					return
				}
			}
		})
	}
	return func(o api.Order) {
		lock.Lock()
		rows = instanceRows(o)
		lock.Unlock()
		draw()
	}, func() { cancel(); clock.Wait() }
}

// instanceRows is a row for each instance. Names need not be unique, so those that are not have their ids with them.
func instanceRows(o api.Order) []output.Row {
	count := map[string]int{}
	for _, i := range o.Instances {
		count[i.Name]++
	}
	rows := make([]output.Row, len(o.Instances))
	for n, i := range o.Instances {
		row := output.Row{Name: i.Name, State: string(i.State), Over: over(i.State), Note: value(i.ServerID)}
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

// over says whether a state stays as it is while nobody does anything.
func over(s api.InstanceState) bool {
	switch s {
	case api.InstanceStateRequested, api.InstanceStateBuilding, api.InstanceStateUpdating, api.InstanceStateRebooting, api.InstanceStateDeleting:
		return false
	}
	return true
}

// outcome is why an order is no success, after a line for each server that could not be had.
func (a *app) outcome(o api.Order) error {
	bad := 0
	for _, i := range o.Instances {
		if i.Error != nil {
			bad++
			fmt.Fprintf(a.err, "%s: %s (%s)\n", output.Clean(i.Name), output.Clean(i.Error.Detail), output.Clean(string(i.Error.Code)))
		}
	}
	if o.Error != nil {
		fmt.Fprintf(a.err, "order: %s (%s)\n", output.Clean(o.Error.Detail), output.Clean(string(o.Error.Code)))
	}
	switch o.Status {
	case api.OrderStatusDone, api.OrderStatusRunning:
		return nil
	case api.OrderStatusRolledBack:
		return failed{fmt.Errorf("order %s is rolled back: not all of its servers could be had, so none is left", o.ID)}
	}
	return failed{fmt.Errorf("order %s is %s: %d of %d servers could not be had", o.ID, o.Status, bad, len(o.Instances))}
}

// withCallback puts back what only the answer to the order itself had: the secret of its callback.
func withCallback(raw json.RawMessage, c *api.OrderCallback) json.RawMessage {
	if c == nil || c.Secret == nil {
		return raw
	}
	return edited(raw, func(fields map[string]json.RawMessage) {
		fields["callback"] = edited(fields["callback"], func(callback map[string]json.RawMessage) {
			callback["secret"], _ = json.Marshal(c.Secret)
		})
	})
}

// edited is an object with other fields.
func edited(raw json.RawMessage, edit func(map[string]json.RawMessage)) json.RawMessage {
	fields := map[string]json.RawMessage{}
	if len(raw) > 0 && json.Unmarshal(raw, &fields) != nil {
		return raw
	}
	edit(fields)
	text, err := json.Marshal(fields)
	if err != nil {
		return raw
	}
	return text
}
