package lookup

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// Nova's lists show the faults only of those servers in ERROR whose cell has the database that Nova's API uses itself,
// such as cell0, where servers are for which there was no host. It shows every fault of a server that is asked for by
// its id.

const (
	mostFaults   = 20 // servers that are asked for by id, for one list
	faultsAtOnce = 8
	faultTime    = 5 * time.Second // for all of them: a list is worth having without its faults
	// Nova writes the fault a moment after the state.
	faultPause = 500 * time.Millisecond
)

// ServerReader reads one server.
type ServerReader interface {
	Server(ctx context.Context, id string) (domain.Server, error)
}

// FillFaults adds the faults of servers in ERROR that a list shows without: of the first 20 of them. What cannot be
// read stays without.
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

// Explain adds Nova's reason to instances that have gone into error, where a list has left it out or Nova had not
// written it yet: of the first 20 of them.
func Explain(ctx context.Context, cloud ServerReader, changed []domain.Instance) {
	for try := range 2 {
		var ids []string
		for _, i := range changed {
			if i.Unexplained() {
				ids = append(ids, i.ServerID)
			}
		}
		if len(ids) == 0 || try > 0 && !domain.Pause(ctx, faultPause) {
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
	group.SetLimit(faultsAtOnce)
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
