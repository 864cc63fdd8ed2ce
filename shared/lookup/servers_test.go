package lookup

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
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
		call := domain.CreateCall{ID: uuid.New(), InstanceID: i.ID}
		order.Instances, order.Calls = append(order.Instances, i), append(order.Calls, call)
		server := domain.Server{
			ID: fmt.Sprintf("server-%d", n), Status: "BUILD",
			Tags: []string{i.ID.String(), domain.OrderTag(order.ID), domain.CallTag(call.ID)},
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

// lateNova is a Nova that writes each fault after so many reads of the server: the sandbox's takes milliseconds for
// that, now and then.
type lateNova struct {
	after int64
	reads atomic.Int64
}

func (n *lateNova) Server(_ context.Context, id string) (domain.Server, error) {
	switch reads := n.reads.Add(1); {
	case id == "broken":
		return domain.Server{}, apperr.New(apperr.BadGateway, "nova answered with status 500")
	case reads > n.after:
		fault := &domain.Fault{Code: 500, Message: "No valid host was found. "}
		return domain.Server{ID: id, Status: "ERROR", Fault: fault}, nil
	}
	return domain.Server{ID: id, Status: "ERROR"}, nil
}

func inError(id string) domain.Instance {
	i := domain.Instance{State: domain.InstanceBuilding}
	i.Observe(domain.Server{ID: id, Status: "ERROR"})
	return i
}

// TestExplain gives an instance in error Nova's reason, also when Nova writes it a moment later; else ours stays.
func TestExplain(t *testing.T) {
	t.Parallel()
	for after, want := range map[int64]string{
		0: "No valid host was found. ", 1: "No valid host was found. ",
		9: "the server is in ERROR",
	} {
		nova := &lateNova{after: after}
		changed := []domain.Instance{{ServerID: "fine", State: domain.InstanceActive}, inError("s1")}
		Explain(t.Context(), nova, changed)
		if got := changed[1].Problem; got.Code != "nova_fault" || got.Detail != want {
			t.Errorf("after %d reads: %+v", after, got)
		}
		if changed[0].Problem != nil || nova.reads.Load() != min(after, 1)+1 {
			t.Errorf("after %d reads: %d were made, and %+v is the problem of one that is fine", after,
				nova.reads.Load(), changed[0].Problem)
		}
	}
}

// TestFillFaults reads the faults of 20 servers at most. One that cannot be read stops no other.
func TestFillFaults(t *testing.T) {
	t.Parallel()
	known := &domain.Fault{Message: "known"}
	list := []domain.Server{
		{ID: "a", Status: "ACTIVE"},
		{ID: "b", Status: "ERROR", Fault: known},
		{ID: "c", Status: "ERROR", Partial: true},
		{ID: "broken", Status: "ERROR"},
	}
	for n := range 30 {
		list = append(list, domain.Server{ID: fmt.Sprint("s", n), Status: "ERROR"})
	}
	nova := &lateNova{}
	FillFaults(t.Context(), nova, list)
	filled := 0
	for _, s := range list {
		if s.Fault != nil && s.Fault != known {
			filled++
		}
	}
	if filled != mostFaults-1 || nova.reads.Load() != mostFaults || list[1].Fault != known || list[0].Fault != nil ||
		list[2].Fault != nil {
		t.Errorf("%d faults were filled in with %d reads: %+v", filled, nova.reads.Load(), list[:4])
	}
}
