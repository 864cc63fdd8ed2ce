package leases

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
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
	return s.returnEmpty(ctx, aggregate, found, surplus)
}

// returnEmpty returns the hosts that were replaced. One that comes back with servers of the reservation on it stays the
// reservation's, and its servers run, until they are gone or the lease ends.
func (s hostStep) returnEmpty(ctx context.Context, aggregate domain.Aggregate, isMade bool, names []string) error {
	if len(names) == 0 {
		return nil
	}
	if err := s.returnToPool(ctx, names); err != nil {
		return err
	}
	building, _, err := s.unplaced(ctx)
	if err != nil || building > 0 {
		return err
	}
	var empty []string
	for _, name := range names {
		own, others, err := s.residents(ctx, name)
		if err != nil {
			return err
		}
		if len(own) > 0 {
			continue
		}
		if err := s.withdraw(ctx, name, others); err != nil {
			return err
		}
		empty = append(empty, name)
	}
	return s.release(ctx, aggregate, isMade, empty)
}

// heal replaces hosts that cannot be the reservation's by others that are free. Without another one the lease is
// degraded until the host is up again; a host with servers of others is never given to it.
func (s hostStep) heal(ctx context.Context) error {
	for _, name := range s.desired() {
		others, isLost, err := s.isUnfit(ctx, name)
		if err != nil {
			return err
		}
		if !isLost {
			s.degraded = s.degraded || s.isCordoned(name)
			continue
		}
		if s.r.Want.Heal == domain.HealManual && s.isGiven(name) {
			s.degraded = true
			continue
		}
		to, ok, err := s.Store.Reallocate(ctx, s.claim, *s.lease, *s.r, name)
		switch {
		case err != nil:
			return err
		case !ok && others > 0:
			return occupied(name, others)
		case !ok:
			s.degraded = true
			continue
		}
		slog.WarnContext(ctx, "another host replaces a reserved one", "lease_id", s.lease.ID,
			"reservation_id", s.r.ID, "host", name, "by", to)
		s.replace(name, to)
		s.Wake("deliver-events")
	}
	return nil
}

// isUnfit reports whether another host has to take the place of one: it is lost, it is cordoned without servers of the
// reservation, or before it is given to the reservation it is down or servers of others are on it.
func (s hostStep) isUnfit(ctx context.Context, name string) (others int, isUnfit bool, err error) {
	node, known := s.nodes[name]
	switch {
	case !known || s.isLost(node):
		return 0, true, nil
	case s.isGiven(name) && node.Enabled:
		return 0, false, nil
	case s.isGiven(name):
		own, _, err := s.residents(ctx, name)
		return 0, err == nil && len(own) == 0, err
	case !node.IsUp || !node.Enabled:
		return 0, true, nil
	}
	if others, err = s.others(ctx, name); err != nil || others == 0 {
		return 0, false, err
	}
	return others, true, s.withdraw(ctx, name, others)
}

// isLost reports whether a host is down for good, as far as one can tell: a missed report moves no reservation. When
// watch-nodes watches the host, it has to find it down, too.
func (s hostStep) isLost(node domain.Node) bool {
	isDown := node.Status == domain.NodeDown || node.Status == domain.NodeUnknown
	return !node.IsUp && isDown && s.now.Sub(node.DownSince) >= s.HealAfter
}

// isCordoned reports whether Nova puts no new servers onto a host.
func (s hostStep) isCordoned(name string) bool {
	node, known := s.nodes[name]
	return known && !node.Enabled
}

// isGiven reports whether the reservation's servers may be on a host.
func (s hostStep) isGiven(name string) bool {
	return s.r.Status != domain.ReservationPending && slices.ContainsFunc(s.r.Allocations,
		func(a domain.Allocation) bool { return a.Node == name && isHeld(a) })
}

// withdraw keeps a host with servers of others from being reserved until it is empty.
func (s hostStep) withdraw(ctx context.Context, name string, others int) error {
	if others == 0 {
		return nil
	}
	reason := occupied(name, others)
	slog.WarnContext(ctx, "a host of the pool", "host", name, "error", reason)
	_, err := s.Nodes.SetPool(ctx, name, domain.NodeReservable, domain.NodeJoining, apperr.As(reason).Message)
	return err
}

// occupied is why a host is not reservable for now.
func occupied(name string, servers int) error {
	count := fmt.Sprintf("%d servers run", servers)
	if servers == 1 {
		count = "1 server runs"
	}
	return apperr.New(apperr.Conflict, "%s on host %s: move or delete them first", count, name)
}

// replace does to the reservation what Reallocate has done to the row.
func (s hostStep) replace(name, by string) {
	for n, a := range s.r.Allocations {
		if a.Node == name && a.ReleasedAt.IsZero() && a.ReplacedAt.IsZero() {
			taken := a
			taken.Node, taken.From = by, s.now
			taken.PreparedAt = taken.ReleasedAt
			s.r.Allocations[n].ReplacedAt = s.now
			s.r.Allocations = append(s.r.Allocations, taken)
			return
		}
	}
}
