package leases

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/domain"
)

const (
	probeTime = time.Minute // bounds the self-test of a host
	atOnce    = 4           // hosts
	// ProbeMargin is how long before its next lease a host is not tested on any more.
	ProbeMargin = 10 * time.Minute
)

// Probe tests on each idle host whether the cloud keeps servers without the trait off it. One host that lets them in is
// enough for unproven. ok is false when no host could be tested; err is then the last reason.
func (p Pool) Probe(ctx context.Context, busy []domain.Allocation) (result domain.Isolation, ok bool, err error) {
	nodes, err := p.Nodes.Pool(ctx)
	if err != nil {
		return result, false, err
	}
	nodes = slices.DeleteFunc(nodes, func(n domain.Node) bool {
		isBusy := slices.ContainsFunc(busy, func(a domain.Allocation) bool { return a.Node == n.Name })
		return n.Pool != domain.NodeReservable || !n.IsUp || isBusy
	})
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
	if proven == 0 {
		return result, false, err
	}
	if proven > 1 {
		result.Detail = fmt.Sprintf("a server without the trait was refused on %d hosts", proven)
	}
	return result, true, nil
}
