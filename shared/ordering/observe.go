package ordering

import (
	"context"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// Observe asks Nova for the order's servers, by tag, and writes down what is new of them, so that none is made twice. A
// server that should be there and is not listed is looked up by its id before it counts as deleted. The order that it gives
// is the stored one: somebody may have seen something newer.
func (w Worker) Observe(ctx context.Context, cloud Cloud, order domain.Order) (domain.Order, error) {
	now, err := w.Orders.Now(ctx) // before Nova is asked
	if err != nil {
		return order, err
	}
	found, err := orderServers(ctx, cloud, order)
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
			if server, err = secondLook(ctx, cloud, i.ServerID); err != nil {
				return order, err
			}
		}
		if i.Found(server) {
			i.SeenAt = now
			news = append(news, i)
		}
	}
	Explain(ctx, cloud, news)
	if order, err = w.write(ctx, order, news); err != nil {
		return order, err
	}
	if order.ReadAt.After(now) {
		order.ReadAt = now // a create call that was open when Nova was asked may have made its server since
	}
	return order, w.removeExtras(ctx, cloud, order, found)
}

// write writes down what is new, and reads the order back.
func (w Worker) write(ctx context.Context, order domain.Order, news []domain.Instance) (domain.Order, error) {
	if len(news) == 0 {
		return w.reread(ctx, order)
	}
	told, err := w.Instances.Change(ctx, news)
	if err != nil {
		return order, err
	}
	if told > 0 {
		w.Tell()
	}
	return w.Orders.Get(ctx, order.ProjectID, order.ID)
}

// reread reads an order anew in which time decides: that waits for the end of a create call, whose fence may be over, or is rolled back.
func (w Worker) reread(ctx context.Context, order domain.Order) (domain.Order, error) {
	if !order.WaitsForCalls() && !order.RollingBack() {
		return order, nil
	}
	return w.Orders.Get(ctx, order.ProjectID, order.ID)
}

func secondLook(ctx context.Context, cloud Cloud, id string) (domain.Server, error) {
	server, err := cloud.Server(ctx, id)
	if apperr.CodeOf(err) == apperr.NotFound {
		return domain.Server{ID: id, Status: "DELETED", Partial: true}, nil
	}
	return server, err
}
