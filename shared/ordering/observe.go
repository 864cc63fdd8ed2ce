package ordering

import (
	"cmp"
	"context"
	"log/slog"
	"slices"

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
	found, _, err := cloud.Servers(ctx, domain.ServerQuery{Tags: []string{domain.OrderTag(order.ID)}, Limit: 1000})
	if err != nil {
		return order, err
	}
	var news []domain.Instance
	for _, i := range order.Instances {
		var server domain.Server
		switch mine := ofInstance(found, i); {
		case len(mine) > 0 && (i.ServerID == "" || i.ServerID == mine[0].ID):
			server = mine[0]
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
	if order, err = w.write(ctx, order, news); err == nil {
		removeExtras(ctx, cloud, order, found)
	}
	return order, err
}

// write writes down what is new, and reads the order back.
func (w Worker) write(ctx context.Context, order domain.Order, news []domain.Instance) (domain.Order, error) {
	if len(news) == 0 {
		return order, nil
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

// removeExtras deletes servers that were made twice, because Nova took so long over a call that its claim ended and it was
// repeated. The one that is written down stays; that is never changed, so whoever looks may do this.
func removeExtras(ctx context.Context, cloud Cloud, order domain.Order, found []domain.Server) {
	for _, i := range order.Instances {
		for _, server := range ofInstance(found, i) {
			if i.ServerID == "" || server.ID == i.ServerID || domain.StateOf(server.Status, server.Task) == domain.InstanceDeleting {
				continue
			}
			err := cloud.DeleteServer(ctx, server.ID)
			slog.WarnContext(ctx, "deleting a server that was made twice", "instance_id", i.ID, "server_id", server.ID, "error", err)
		}
	}
}

func secondLook(ctx context.Context, cloud Cloud, id string) (domain.Server, error) {
	server, err := cloud.Server(ctx, id)
	if apperr.CodeOf(err) == apperr.NotFound {
		return domain.Server{ID: id, Status: "DELETED", Partial: true}, nil
	}
	return server, err
}

// ofInstance lists the servers that carry the instance's tag, the one to keep first: the one that is written
// down, else the oldest. Every copy comes to the same choice.
func ofInstance(found []domain.Server, i domain.Instance) []domain.Server {
	var mine []domain.Server
	for _, server := range found {
		gone := i.ServerID == "" && domain.StateOf(server.Status, server.Task) == domain.InstanceDeleted // Nova lists it for a moment more
		if slices.Contains(server.Tags, i.ID.String()) && !gone {
			mine = append(mine, server)
		}
	}
	slices.SortFunc(mine, func(a, b domain.Server) int {
		switch i.ServerID {
		case "":
		case a.ID:
			return -1
		case b.ID:
			return 1
		}
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	return mine
}
