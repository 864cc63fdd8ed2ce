package orders

import (
	"context"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
)

// Observe asks Nova for the order's servers, by tag, and writes what is new of them, so that none is made twice. A
// server that should be there and is not listed is looked up by its id before it counts as deleted. The order that it
// gives is the stored one: somebody may have seen something newer.
func (e Engine) Observe(ctx context.Context, cloud Cloud, order domain.Order) (domain.Order, error) {
	now, err := e.Orders.Now(ctx) // before Nova is asked
	if err != nil {
		return order, err
	}
	found, err := lookup.ServersOfOrder(ctx, cloud, order)
	if err != nil {
		return order, err
	}
	var news []domain.Instance
	for _, i := range order.Instances {
		var server domain.Server
		own, adopted, ok := order.OwnServer(i, found)
		switch {
		case ok:
			i, server = adopted, own
		case i.ServerID == "" || i.State == domain.InstanceDeleted:
			continue
		default:
			if server, err = confirmDeleted(ctx, cloud, i.ServerID); err != nil {
				return order, err
			}
		}
		if i.Found(server) {
			i.SeenAt = now
			news = append(news, i)
		}
	}
	lookup.Explain(ctx, cloud, news)
	if order, err = e.write(ctx, order, news); err != nil {
		return order, err
	}
	if order.ReadAt.After(now) {
		order.ReadAt = now // a create call that was open when Nova was asked may have made its server since
	}
	return order, e.removeExtras(ctx, cloud, order, found)
}

// write writes what is new, and reads the order back.
func (e Engine) write(ctx context.Context, order domain.Order, news []domain.Instance) (domain.Order, error) {
	if len(news) == 0 {
		return e.reread(ctx, order)
	}
	if err := e.change(ctx, news...); err != nil {
		return order, err
	}
	return e.Orders.Get(ctx, order.ProjectID, order.ID)
}

// reread reads an order anew in which time decides: that waits for the end of a create call, whose fence may be over,
// or is rolled back.
func (e Engine) reread(ctx context.Context, order domain.Order) (domain.Order, error) {
	if !order.WaitsForCalls() && !order.RollingBack() {
		return order, nil
	}
	return e.Orders.Get(ctx, order.ProjectID, order.ID)
}

// confirmDeleted asks for a server by its id that no list shows.
func confirmDeleted(ctx context.Context, cloud Cloud, id string) (domain.Server, error) {
	server, err := cloud.Server(ctx, id)
	if apperr.CodeOf(err) == apperr.NotFound {
		return domain.Server{ID: id, Status: "DELETED", Partial: true}, nil
	}
	return server, err
}
