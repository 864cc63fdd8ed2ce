package leases

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// maintain reconciles the hosts of an active reservation: those that are down are replaced, and what an admin has
// deleted or moved by hand is made again. Without such a change it goes by lists that the leases share, and writes
// nothing.
func (s hostStep) maintain(ctx context.Context) error {
	v, err := s.view(ctx, sharedFor)
	if err == nil && !s.isWhole(v) {
		v, err = s.view(ctx, 0)
	}
	if err != nil {
		return err
	}
	if err := s.replaceUnfit(ctx, v); err != nil {
		return err
	}
	if v, err = s.converge(ctx, v); err != nil {
		return err
	}
	if err := s.ensureFlavors(ctx); err != nil {
		return err
	}
	return s.returnEmpty(ctx, v.own, s.surplus(v))
}

// returnEmpty returns the hosts that were replaced. One that comes back with servers of the reservation on it stays the
// reservation's, and its servers run, until they are deleted or the lease ends.
func (s hostStep) returnEmpty(ctx context.Context, aggregate domain.Aggregate, names []string) error {
	if len(names) == 0 {
		return nil
	}
	if err := s.returnToPool(ctx, names); err != nil {
		return err
	}
	building, _, err := s.unplacedServers(ctx)
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
		if err := s.makeUnreservable(ctx, name, CheckServers(name, others)); err != nil {
			return err
		}
		empty = append(empty, name)
	}
	return s.release(ctx, aggregate, empty...)
}

// replaceUnfit replaces hosts that cannot be the reservation's by others that are free. Without another one the lease
// is degraded until the host is up again; a host with servers of others is never given to it.
func (s hostStep) replaceUnfit(ctx context.Context, v view) error {
	var held []string
	if overdue := s.overdue(); len(overdue) > 0 {
		var err error
		if held, err = s.Store.HeldByOthers(ctx, *s.r, overdue...); err != nil {
			return err
		}
	}
	for _, name := range s.desired() {
		reason, isLost, err := s.isUnfit(ctx, v, name, held)
		if err != nil {
			return err
		}
		if !isLost {
			s.degraded = s.degraded || s.isCordoned(name) || reason != nil
			if reason != nil {
				s.reason = hostProblem(reason)
			}
			continue
		}
		if s.r.Request.Heal == domain.HealManual && s.isAllocated(name) {
			s.degraded = true
			continue
		}
		to, ok, err := s.Store.Reallocate(ctx, s.claim, *s.lease, *s.r, name)
		switch {
		case err != nil:
			return err
		case !ok && reason != nil:
			return reason
		case !ok:
			s.degraded = true
			continue
		}
		slog.WarnContext(ctx, "reserved host replaced", "lease_id", s.lease.ID,
			"reservation_id", s.r.ID, "host", name, "by", to)
		s.replace(name, to)
		s.Wake("deliver-events")
	}
	return nil
}

// longestWait is how long a reservation waits for a host that another lease has not returned, before it takes another.
const longestWait = 3 * time.Minute

// overdue are the hosts that the reservation has not been given within longestWait.
func (s hostStep) overdue() (names []string) {
	for _, a := range s.r.Allocations {
		if s.now.Sub(a.From) > longestWait && a.ReplacedAt.IsZero() && !s.isAllocated(a.Node) {
			names = append(names, a.Node)
		}
	}
	return names
}

// isUnfit reports whether another host has to take the place of one: it is lost, it is cordoned without servers, or
// before it is given to the reservation it is down, isolated by others, another lease holds it for too long, or servers
// of others are on it.
// reason is why nothing can be launched onto a host that is up, whether another one has to take its place or not.
func (s hostStep) isUnfit(ctx context.Context, v view, name string, held []string) (
	reason error, isUnfit bool, err error,
) {
	node, known := s.nodes[name]
	foreign := CheckAggregates(v.aggregates, name, s.lease.ProjectID)
	switch {
	case !known || s.isLost(node):
		return nil, true, nil
	case s.isAllocated(name) && node.Enabled:
		return foreign, false, nil
	case s.isAllocated(name):
		own, others, err := s.residents(ctx, name)
		return nil, err == nil && len(own)+others == 0, err
	case !node.IsUp || !node.Enabled:
		return nil, true, nil
	case slices.Contains(held, name):
		return notReturned(name), true, nil
	case foreign != nil:
		return foreign, true, s.makeUnreservable(ctx, name, foreign)
	case s.isReserved(v, name): // it was empty when it left the pool
		return nil, false, nil
	}
	others, err := s.others(ctx, name)
	if err != nil || others == 0 {
		return nil, false, err
	}
	reason = CheckServers(name, others)
	return reason, true, s.makeUnreservable(ctx, name, reason)
}

// isLost reports whether a host is down for good, as far as one can tell: a missed report moves no reservation. When
// watch-nodes watches the host, it has to find it down, too. An admin who has forced it down in Nova has said so.
func (s hostStep) isLost(node domain.Node) bool {
	if node.ForcedDown && !node.IsUp {
		return true
	}
	isDown := node.Status == domain.NodeDown || node.Status == domain.NodeUnknown
	return !node.IsUp && isDown && s.now.Sub(node.DownSince) >= s.HealAfter
}

// isCordoned reports whether Nova puts no new servers onto a host.
func (s hostStep) isCordoned(name string) bool {
	node, known := s.nodes[name]
	return known && !node.Enabled
}

// isAllocated reports whether the reservation's servers may be on a host.
func (s hostStep) isAllocated(name string) bool {
	return s.r.Status != domain.ReservationPending && slices.ContainsFunc(s.r.Allocations,
		func(a domain.Allocation) bool { return a.Node == name && isHeld(a) })
}

// makeUnreservable keeps a host from being reserved as long as the reason lasts; nil changes nothing.
func (s hostStep) makeUnreservable(ctx context.Context, name string, reason error) error {
	if reason == nil {
		return nil
	}
	slog.WarnContext(ctx, "host is not reservable for now", "host", name, "error", reason)
	_, err := s.Nodes.SetPool(ctx, name, domain.NodeReservable, domain.NodeJoining, apperr.As(reason).Message)
	return err
}

// CheckServers returns a Conflict when servers run on the host: it is not reservable for now.
func CheckServers(name string, servers int) error {
	const words = "servers of others run on a reserved host: the cloud's admin has to move them"
	switch servers {
	case 0:
		return nil
	case 1:
		return public(apperr.New(apperr.Conflict, "1 server runs on host %s: move or delete it first", name), words)
	}
	return public(apperr.New(apperr.Conflict, "%d servers run on host %s: move or delete them first", servers, name),
		words)
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
