package leases

import (
	"context"
	"log/slog"
	"slices"
)

// keep looks after the hosts of an active reservation: those that are down are replaced, and what somebody has deleted
// or moved by hand is made again.
func (s hostStep) keep(ctx context.Context) error {
	if err := s.heal(ctx); err != nil {
		return err
	}
	if err := s.converge(ctx); err != nil {
		return err
	}
	aggregate, found, err := s.aggregate(ctx)
	if err != nil {
		return err
	}
	desired := s.desired()
	surplus := slices.DeleteFunc(s.heldHosts(aggregate), func(name string) bool {
		return slices.Contains(desired, name)
	})
	return s.release(ctx, aggregate, found, surplus)
}

// heal replaces hosts that are down by others that are free. Without another one the lease is degraded until the host
// is up again.
func (s hostStep) heal(ctx context.Context) error {
	isDegraded := false
	for _, name := range s.desired() {
		node, known := s.nodes[name]
		if known && node.IsUp {
			continue
		}
		to, ok, err := s.Store.Reallocate(ctx, s.claim, *s.lease, *s.r, name)
		if err != nil {
			return err
		}
		if !ok {
			isDegraded = true
			continue
		}
		slog.WarnContext(ctx, "a reserved host is down, and another one replaces it", "lease_id", s.lease.ID,
			"reservation_id", s.r.ID, "host", name, "by", to)
		s.replace(name, to)
	}
	s.degraded = s.degraded || isDegraded
	return nil
}

// replace does to the reservation what Reallocate has done to the row.
func (s hostStep) replace(name, by string) {
	for n, a := range s.r.Allocations {
		if a.Node == name && a.ReleasedAt.IsZero() && s.now.Before(a.Until) {
			taken := a
			taken.Node, taken.From = by, s.now
			taken.PreparedAt = taken.ReleasedAt
			s.r.Allocations[n].Until = s.now
			s.r.Allocations = append(s.r.Allocations, taken)
			return
		}
	}
}
