package leases

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/domain"
)

const (
	probeTime = time.Minute // bounds the self-test of a host
	atOnce    = 4           // hosts
	// The setting that keeps servers off is the scheduler's, for all hosts. So of a large pool some are tested.
	mostProbed = 40
	// ProbeMargin is how long before its next lease a host is not tested on any more.
	ProbeMargin = 10 * time.Minute
)

// Probe tests on idle hosts, at most mostProbed random ones, whether the cloud keeps servers without the trait off
// them. One host that lets them in is enough for unproven. ok is false when no host could be tested; err is then the
// last reason.
func (p Pool) Probe(ctx context.Context, busy []domain.Allocation) (result domain.Isolation, ok bool, err error) {
	nodes, err := p.Nodes.Pool(ctx)
	if err != nil {
		return result, false, err
	}
	nodes = slices.DeleteFunc(nodes, func(n domain.Node) bool {
		isBusy := slices.ContainsFunc(busy, func(a domain.Allocation) bool { return a.Node == n.Name })
		return n.Pool != domain.NodeReservable || !n.IsUp || isBusy
	})
	idle := len(nodes)
	if idle > mostProbed {
		rand.Shuffle(idle, func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] }) //nolint:gosec // only a sample
		nodes = nodes[:mostProbed]
	}
	found, errs := make([]domain.Isolation, len(nodes)), make([]error, len(nodes))
	var all errgroup.Group
	all.SetLimit(atOnce)
	for n, node := range nodes {
		all.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, probeTime)
			defer cancel()
			found[n], errs[n] = p.Cloud.ProbeHost(ctx, node.Name)
			return nil
		})
	}
	_ = all.Wait()
	proven := 0
	for n, node := range nodes {
		switch {
		case errs[n] != nil:
			err = errs[n]
			slog.WarnContext(ctx, "a self-test of the isolation", "host", node.Name, "error", err)
		case found[n].Result == domain.IsolationUnproven:
			return found[n], true, nil
		default:
			result, proven = found[n], proven+1
		}
	}
	if proven == 0 || ctx.Err() != nil { // hosts that were not tested prove nothing
		return result, false, err
	}
	if idle > 1 {
		result.Detail = fmt.Sprintf("a server without the trait was refused on %d of %d idle hosts", proven, idle)
	}
	return result, true, nil
}
