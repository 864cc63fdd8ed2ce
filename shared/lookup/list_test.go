package lookup

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// smallPages fakes a Nova whose max_limit is small. moving is a server that no page of a longer list shows.
type smallPages struct {
	servers []domain.Server
	limit   int
	moving  string
	circle  bool
}

func (s smallPages) Servers(_ context.Context, q domain.ServerQuery) ([]domain.Server, bool, error) {
	found := slices.DeleteFunc(slices.Clone(s.servers), func(server domain.Server) bool {
		return !slices.Contains(server.Tags, q.Tags[0]) || server.ID == s.moving && q.Tags[0] != server.Tags[0]
	})
	if q.Marker != "" && !s.circle {
		found = found[1+slices.IndexFunc(found, func(server domain.Server) bool { return server.ID == q.Marker }):]
	}
	more := len(found) > s.limit
	return found[:min(s.limit, len(found))], more, nil
}

// TestServersOfOrder finds all servers of an order although Nova's pages are shorter than the order.
func TestServersOfOrder(t *testing.T) {
	t.Parallel()
	order := domain.Order{ID: uuid.New(), Status: domain.OrderRunning}
	fake := smallPages{limit: 4, moving: "server-7"}
	for n := range 11 {
		i := domain.Instance{ID: uuid.New()}
		order.Instances = append(order.Instances, i)
		server := domain.Server{
			ID: fmt.Sprintf("server-%d", n), Status: "BUILD",
			Tags: []string{i.ID.String(), domain.OrderTag(order.ID)},
		}
		fake.servers = append(fake.servers, server)
	}
	got, err := ServersOfOrder(t.Context(), fake, order)
	if err != nil {
		t.Fatal(err)
	}
	for n, i := range order.Instances {
		if own, _, ok := order.OwnServer(i, got); !ok || own.ID != fake.servers[n].ID {
			t.Errorf("instance %d has server %q", n, own.ID)
		}
	}
	fake.circle = true
	if _, err := ServersByTag(t.Context(), fake, domain.OrderTag(order.ID)); apperr.CodeOf(err) != apperr.BadGateway {
		t.Errorf("pages in a circle: %v", err)
	}
}
