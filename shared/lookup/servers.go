package lookup

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/flow"
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

// Nova's lists show the faults only of servers in ERROR whose cell shares the database of Nova's API, such as cell0,
// which has the servers that got no host. A single server's fault is always shown.

const (
	mostFaults     = 20 // servers that are read one by one for a list
	parallelFaults = 8
	faultTime      = 5 * time.Second // for all of them: a list without faults is better than a late one
	// Nova writes the fault a moment after the state.
	faultPause = 500 * time.Millisecond
)

// ServerReader reads one server.
type ServerReader interface {
	Server(ctx context.Context, id string) (domain.Server, error)
}

// FillFaults adds the faults that a list leaves out, for its first 20 servers in ERROR without one. Those that cannot
// be read stay absent.
func FillFaults(ctx context.Context, cloud ServerReader, servers []domain.Server) {
	var ids []string
	for _, s := range servers {
		if s.Status == "ERROR" && s.Fault == nil && !s.Partial {
			ids = append(ids, s.ID)
		}
	}
	faults := readFaults(ctx, cloud, ids)
	for n := range servers {
		if fault, ok := faults[servers[n].ID]; ok && servers[n].Fault == nil {
			servers[n].Fault = &fault
		}
	}
}

// Explain adds Nova's reason to the first 20 instances that went to error without one: a list has left it out, or Nova
// had not written it yet.
func Explain(ctx context.Context, cloud ServerReader, changed []domain.Instance) {
	for try := range 2 {
		var ids []string
		for _, i := range changed {
			if i.Unexplained() {
				ids = append(ids, i.ServerID)
			}
		}
		if len(ids) == 0 || try > 0 && !flow.Sleep(ctx, faultPause) {
			return
		}
		faults := readFaults(ctx, cloud, ids)
		for n := range changed {
			if fault, ok := faults[changed[n].ServerID]; ok {
				changed[n].Explain(fault)
			}
		}
	}
}

// readFaults reads the faults of servers, by server id.
func readFaults(ctx context.Context, cloud ServerReader, ids []string) map[string]domain.Fault {
	ctx, cancel := context.WithTimeout(ctx, faultTime)
	defer cancel()
	var mu sync.Mutex
	faults := map[string]domain.Fault{}
	var group errgroup.Group
	group.SetLimit(parallelFaults)
	for _, id := range ids[:min(len(ids), mostFaults)] {
		group.Go(func() error {
			server, err := cloud.Server(ctx, id)
			if err != nil || server.Fault == nil {
				return nil // the fault stays unknown
			}
			mu.Lock()
			defer mu.Unlock()
			faults[id] = *server.Fault
			return nil
		})
	}
	_ = group.Wait() // the functions above never fail
	return faults
}
