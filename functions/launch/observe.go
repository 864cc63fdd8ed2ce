package launch

import (
	"cmp"
	"context"
	"log/slog"
	"slices"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// resume finds the servers of an order that somebody has begun: by tag, so that none is made twice. One that was
// made twice all the same, because Nova took so long over a call that its claim ended and it was repeated, goes.
func (s service) resume(ctx context.Context, cloud session, order domain.Order) (domain.Order, error) {
	order, found, err := s.observe(ctx, cloud, order)
	if err != nil {
		return order, err
	}
	for _, i := range order.Instances {
		mine := ofInstance(found, i)
		for _, extra := range mine[min(1, len(mine)):] {
			slog.WarnContext(ctx, "deleting a server that was made twice", "instance_id", i.ID, "server_id", extra.ID)
			if err := cloud.DeleteServer(ctx, extra.ID); err != nil {
				return order, err
			}
		}
	}
	return order, nil
}

// observe asks Nova for the order's servers, by tag, and writes down what is new of them. A server that should be
// there and is not listed is looked up by its id before it counts as deleted.
func (s service) observe(ctx context.Context, cloud session, order domain.Order) (domain.Order, []domain.Server, error) {
	found, _, err := cloud.Servers(ctx, domain.ServerQuery{Tags: []string{orderTag(order)}, Limit: 1000})
	if err != nil {
		return order, nil, err
	}
	var news []domain.Instance
	order.Instances = slices.Clone(order.Instances)
	for n := range order.Instances {
		i := &order.Instances[n]
		var server domain.Server
		switch mine := ofInstance(found, *i); {
		case len(mine) > 0:
			server = mine[0]
		case i.ServerID == "" || i.State == domain.InstanceDeleted:
			continue
		default:
			if server, err = secondLook(ctx, cloud, i.ServerID); err != nil {
				return order, found, err
			}
		}
		if i.Seen(server) {
			news = append(news, *i)
		}
	}
	if len(news) == 0 {
		return order, found, nil
	}
	_, err = s.instances.Change(ctx, news)
	return order, found, err
}

func secondLook(ctx context.Context, cloud session, id string) (domain.Server, error) {
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
		if slices.Contains(server.Tags, i.ID.String()) {
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
