package lookup

import (
	"context"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// ServersByTag lists all servers that carry the tag, each once.
func ServersByTag(ctx context.Context, cloud Lister, tag string) ([]domain.Server, error) {
	found, _, err := listByTag(ctx, cloud, tag)
	return found, err
}

// Lister reads a page of a project's servers.
type Lister interface {
	Servers(context.Context, domain.ServerQuery) (page []domain.Server, more bool, err error)
}

// ServersOfOrder lists all servers of the order. A server that moves to its cell while several pages are read can be on
// none of them, so each instance without a server is then looked up by its own tag.
func ServersOfOrder(ctx context.Context, cloud Lister, order domain.Order) ([]domain.Server, error) {
	found, pages, err := listByTag(ctx, cloud, domain.OrderTag(order.ID))
	if err != nil || pages == 1 {
		return found, err
	}
	for _, i := range order.Instances {
		if _, _, isFound := order.OwnServer(i, found); isFound || i.ServerID != "" {
			continue
		}
		more, err := ServersByTag(ctx, cloud, i.ID.String())
		if err != nil {
			return nil, err
		}
		found = append(found, more...)
	}
	return found, nil
}

func listByTag(ctx context.Context, cloud Lister, tag string) (found []domain.Server, pages int, err error) {
	q := domain.ServerQuery{Tags: []string{tag}, Limit: 1000}
	seen, markers := map[string]bool{}, map[string]bool{}
	for {
		page, more, err := cloud.Servers(ctx, q)
		if err != nil {
			return nil, pages, err
		}
		pages++
		for _, server := range page {
			if !seen[server.ID] {
				seen[server.ID] = true
				found = append(found, server)
			}
		}
		if !more || len(page) == 0 {
			return found, pages, nil
		}
		if q.Marker = page[len(page)-1].ID; markers[q.Marker] {
			return nil, pages, apperr.New(apperr.BadGateway, "nova returned the same page of servers twice")
		}
		markers[q.Marker] = true
	}
}
