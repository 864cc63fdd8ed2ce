package leases

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/actions"
	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// dryRun reports everything that would make the lease fail, as far as it shows now: the caller's rights, what Postgres
// refuses, and instances that Nova would not shelve before the start. Whether Keystone makes a trust for the token
// shows only when it is asked for one.
func (s service) dryRun(
	ctx context.Context, who domain.Identity, cloud session, made domain.NewLease, terms domain.LeaseTerms,
) (domain.Lease, error) {
	checked, err := s.store.Check(ctx, made)
	rejected := explain(s.withJoining(ctx, err), terms, made.Lease.StartsAt)
	faults := []error{rejected, s.checkRights(ctx, who, made.Lease)}
	if made.Lease.StartsAt.After(checked.CreatedAt) || err != nil {
		for n, r := range made.Lease.Reservations {
			if r.InstanceID != uuid.Nil {
				faults = append(faults, s.checkInstance(ctx, cloud, made.Lease, n))
			}
		}
	}
	byWhom := "X-Auth-Token"
	if made.Lease.SharesConnection {
		byWhom = "connection_id"
	}
	return checked, join(slices.DeleteFunc(faults, func(err error) bool { return err == nil }), byWhom)
}

// checkRights rejects a caller, or a connection, who cannot handle the instances of a lease.
func (s service) checkRights(ctx context.Context, who domain.Identity, lease domain.Lease) error {
	switch {
	case lease.SharesConnection:
		return s.checkConnection(ctx, who, lease)
	case lease.Instances():
		return s.trusts.MayLease(who)
	}
	return nil
}

// checkInstance rejects an instance that Nova does not have, or would not shelve in its state.
func (s service) checkInstance(ctx context.Context, cloud session, lease domain.Lease, n int) error {
	field := fmt.Sprintf("reservations[%d].instance_id", n)
	found, err := s.instances.Find(ctx, domain.Filter{ProjectID: lease.ProjectID},
		[]string{lease.Reservations[n].InstanceID.String()})
	if err != nil || found[0].ServerID == "" || found[0].Remote { // Postgres refuses it, or its order makes its server
		return err
	}
	server, err := actions.ReadServer(ctx, cloud, found[0].ServerID, lease.ProjectID, true)
	if apperr.CodeOf(err) == apperr.NotFound {
		return apperr.InvalidField(field, "has no server in Nova any more")
	}
	if err != nil {
		return err
	}
	switch state := domain.StateOf(server.Status, server.Task); state {
	case domain.InstanceActive, domain.InstanceStopped, domain.InstancePaused, domain.InstanceShelved:
		return nil
	default:
		refusal := apperr.InvalidField(field, fmt.Sprintf("is %s: before the start Nova shelves only servers that are "+
			"active, stopped or paused", state))
		refusal.Code = apperr.Conflict
		return refusal
	}
}

// join is one error with the fields of all; nil for none. It has the code and the message of the first. An error
// without a field is about whoever acts.
func join(faults []error, byWhom string) error {
	if len(faults) == 0 {
		return nil
	}
	all := *apperr.As(faults[0])
	all.Fields = nil
	for _, fault := range faults {
		e := apperr.As(fault)
		if len(e.Fields) == 0 && len(faults) > 1 {
			all.Fields = append(all.Fields, apperr.Field{Field: byWhom, Detail: e.Message})
		}
		all.Fields = append(all.Fields, e.Fields...)
	}
	return &all
}
