package leases

import (
	"context"
	"fmt"
	"slices"

	"github.com/cloudfn/cloudfn/shared/actions"
	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// finish returns the hosts: nobody can launch on them any more, then the servers go as on_end says, then the hosts are
// the pool's again.
func (s hostStep) finish(ctx context.Context) error {
	for _, f := range s.r.Flavors {
		if err := s.cloud.DeleteFlavor(ctx, f.ID); err != nil {
			return err
		}
	}
	aggregate, found, err := s.aggregate(ctx)
	if err != nil {
		return err
	}
	names := s.heldHosts(aggregate)
	isEmpty, err := s.empty(ctx, names)
	if err != nil || !isEmpty {
		return err
	}
	if isDone, err := s.shelveMoved(ctx); err != nil || !isDone {
		return err
	}
	if err := s.release(ctx, aggregate, found, names); err != nil {
		return err
	}
	if found {
		if err := s.cloud.DeleteAggregate(ctx, aggregate.ID); err != nil {
			return err
		}
	}
	if err := s.cloud.DeleteTrait(ctx, TraitName(s.r.ID)); err != nil {
		return err
	}
	s.r.Status, s.r.AggregateID = domain.ReservationEnded, 0
	return nil
}

// aggregate finds the reservation's aggregate by its name.
func (s hostStep) aggregate(ctx context.Context) (domain.Aggregate, bool, error) {
	return s.cloud.FindAggregate(ctx, AggregateName(s.r.ID))
}

// heldHosts are the hosts that are or may be the reservation's: those of its aggregate, and those that it has prepared.
func (s hostStep) heldHosts(aggregate domain.Aggregate) []string {
	names := slices.Clone(aggregate.Hosts)
	for _, a := range s.r.Allocations {
		if isHeld(a) {
			names = append(names, a.Node)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// release takes hosts out of the aggregate, and the trait off their providers.
func (s hostStep) release(ctx context.Context, aggregate domain.Aggregate, hasAggregate bool, names []string) error {
	for _, name := range names {
		if err := s.renew(ctx); err != nil {
			return err
		}
		provider := s.nodes[name].ProviderID
		if hasAggregate {
			if err := s.cloud.RemoveHost(ctx, aggregate, name, provider); err != nil {
				return err
			}
		}
		if err := s.cloud.SetProviderTrait(ctx, provider, TraitName(s.r.ID), false); err != nil {
			return err
		}
	}
	if len(names) == 0 {
		return nil
	}
	return s.Store.Released(ctx, s.claim, *s.r, names...)
}

// empty does what on_end says to the reservation's servers on the hosts. isEmpty reports that no such server is left.
// Servers of others, and those that the project has put there without the reservation, are not its to end.
func (s hostStep) empty(ctx context.Context, names []string) (isEmpty bool, err error) {
	isEmpty = true
	var failures []error
	for _, name := range names {
		if node, known := s.nodes[name]; known && !node.IsUp {
			continue // its servers neither run nor obey
		}
		if err := s.renew(ctx); err != nil {
			return false, err
		}
		servers, err := s.cloud.HostServers(ctx, name)
		if err != nil {
			return false, err
		}
		for _, found := range servers {
			if found.ProjectID != s.lease.ProjectID {
				continue
			}
			isOurs, err := s.endServer(ctx, found.ID)
			if err != nil {
				failures = append(failures, fmt.Errorf("server %s: %w", found.ID, err))
			}
			isEmpty = isEmpty && !isOurs
		}
	}
	if len(failures) > 0 {
		return false, failures[0]
	}
	s.isMoving = s.isMoving || !isEmpty
	return isEmpty, nil
}

// endServer does the next step of on_end to a server. isOurs reports whether it was launched with the reservation.
func (s hostStep) endServer(ctx context.Context, id string) (isOurs bool, err error) {
	server, err := s.cloud.Server(ctx, id)
	if apperr.CodeOf(err) == apperr.NotFound {
		return false, nil
	}
	if err != nil {
		return true, err
	}
	if _, isPrivate := s.base(server); !isPrivate {
		return false, nil
	}
	if server.Task == "deleting" || server.Status == "DELETED" || server.Status == "SOFT_DELETED" {
		return true, nil
	}
	switch s.lease.OnEnd {
	case domain.OnEndDelete:
		return true, s.cloud.DeleteServer(ctx, id)
	case domain.OnEndSnapshotDelete:
		isDone, err := s.act(ctx, server, domain.Snapshot)
		if isDone {
			err = s.cloud.DeleteServer(ctx, id)
		}
		return true, err
	}
	return true, s.shelve(ctx, server)
}

// act does the next step of an action with the service account.
func (s hostStep) act(ctx context.Context, server domain.Server, action domain.Action) (isDone bool, err error) {
	progress, err := actions.Engine{Instances: s.Instances}.Step(ctx, s.cloud, actions.Action{
		ActionRequest: domain.ActionRequest{Action: action}, ServerID: server.ID, Lease: s.lease.ID,
		Follow: &actions.Follow{RequestedAt: s.now, Now: s.now},
	})
	return progress.Done, err
}
