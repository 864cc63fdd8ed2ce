package leases

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/actions"
	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/delegation"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

type service struct {
	store       postgres.Leases
	connections postgres.Connections
	instances   postgres.Instances
	nodes       postgres.Nodes
	isolations  postgres.Isolations
	trusts      delegation.Trusts
	cloud       *openstack.Cloud
	rules       domain.LeaseRules
	wake        func(functions ...string)
	changes     postgres.RateLimit
}

// caller is who sends a request. Its session has their own token.
type caller struct {
	domain.Identity

	cloud *openstack.Session
}

// Delete ends a lease of the project, with onEnd instead of its own unless that is empty. A pending one may be
// cancelled immediately; run-leases ends any other.
func (s service) Delete(
	ctx context.Context, who caller, id uuid.UUID, onEnd domain.OnEnd,
) (domain.Lease, error) {
	ended, err := s.store.End(ctx, who.ProjectID, id, onEnd, domain.ActorFrom(ctx))
	if err == nil {
		s.wake("run-leases", "run-connections", "deliver-events")
	}
	return ended, err
}

// Isolation reports whether this cloud is known to keep other servers off reserved hosts.
func (s service) Isolation(ctx context.Context) (domain.Isolation, error) {
	found, err := s.isolations.Get(ctx, s.cloud.Region())
	if found.Result == "" {
		found.Result = domain.IsolationUnproven // there was no test yet
	}
	return found, err
}

// searchFor is how far ahead free hosts are searched, and allocations listed, unless the request says more.
const searchFor = 366 * 24 * time.Hour

// window is the time between from and until, with what is absent.
func (s service) window(ctx context.Context, from, until time.Time) (time.Time, time.Time, error) {
	now, err := s.store.Now(ctx)
	if err != nil {
		return from, until, err
	}
	if from.IsZero() {
		from = now
	}
	if until.IsZero() {
		until = from.Add(searchFor)
	}
	if !until.After(from) {
		err = apperr.InvalidField("until", "must be after from, "+from.UTC().Format(time.RFC3339))
	}
	return from, until, err
}

// Create stores a lease with its hosts, and delegates what its instances need; or it only reports whether it could.
func (s service) Create(ctx context.Context, who caller, in CreateLease, dryRun bool) (domain.Lease, error) {
	if stored, err := s.store.FindRepeated(ctx, in.identified(who)); err != nil || stored.Repeated {
		if err == nil {
			s.wake("run-leases", "deliver-events") // the earlier attempt may have died before that
		}
		return stored, err
	}
	made, err := s.draft(ctx, who, in)
	if err != nil {
		return made.Lease, err
	}
	isDelegated := made.Lease.Instances() && !made.Lease.SharesConnection
	if dryRun || made.Lease.Hosts() || !isDelegated {
		if err := s.count(ctx, who.Identity); err != nil {
			return made.Lease, err
		}
	}
	if dryRun {
		return s.dryRun(ctx, who, made, in.Terms())
	}
	if err := s.checkRights(ctx, who, made.Lease); err != nil {
		return made.Lease, err
	}
	s.refresh(ctx, who.cloud, made.Lease)
	if isDelegated {
		if _, err := s.store.Check(ctx, made); err != nil { // a lease that Postgres refuses needs no trust
			return made.Lease, explain(s.withJoining(ctx, err), in.Terms(), made.Lease.StartsAt)
		}
		purpose := delegation.ForLease(made.Lease)
		if made.Connection, err = s.trusts.Delegate(ctx, who.Identity, who.cloud, purpose); err != nil {
			return made.Lease, err
		}
	}
	stored, err := s.store.Create(ctx, made)
	if err != nil {
		stored, err = delegation.AfterFailure(ctx, s.trusts, who.cloud, made.Connection, err, apperr.Retryable(err),
			func(ctx context.Context) (domain.Lease, error) {
				return s.store.Get(ctx, made.Lease.ProjectID, made.Lease.ID)
			})
		if err != nil {
			return made.Lease, explain(s.withJoining(ctx, err), in.Terms(), made.Lease.StartsAt)
		}
	}
	if stored.Repeated && made.Connection != nil { // the same request was first
		s.trusts.Abandon(ctx, who.cloud, *made.Connection)
	}
	s.wake("run-leases", "deliver-events")
	return stored, nil
}

// refresh stores the states of instances as Nova shows them, because their owner may have started them since they were
// polled: one that is shelved needs nothing before the start. Where Nova cannot be read, the next poll stores them.
func (s service) refresh(ctx context.Context, cloud *openstack.Session, lease domain.Lease) {
	var ids []string
	for _, r := range lease.Reservations {
		switch {
		case r.Connect != nil:
			ids = append(ids, r.Connect.ServerID)
		case r.InstanceID != uuid.Nil:
			ids = append(ids, r.InstanceID.String())
		}
	}
	now, err := s.store.Now(ctx)
	if err != nil || !lease.StartsAt.After(now) || len(ids) == 0 {
		return
	}
	found, err := s.instances.Find(ctx, domain.Filter{ProjectID: lease.ProjectID}, ids)
	if err != nil {
		return
	}
	var changed []domain.Instance
	for _, i := range found {
		if i.State == domain.InstanceActive || i.ServerID == "" || i.Remote {
			continue
		}
		server, err := actions.ReadServer(ctx, cloud, i.ServerID, lease.ProjectID, true)
		if i.SeenAt = now; err == nil && i.Found(server) {
			changed = append(changed, i)
		}
	}
	if len(changed) == 0 {
		return
	}
	if _, err := s.instances.Change(ctx, changed); err != nil {
		slog.WarnContext(ctx, "instance states not stored; the next poll stores them",
			"lease_id", lease.ID, "error", err)
	}
}

// checkConnection rejects a connection that the caller's project does not have, or that cannot handle the lease.
func (s service) checkConnection(ctx context.Context, who caller, lease domain.Lease) error {
	c, now, err := s.connections.Usable(ctx, who.Identity, lease.ConnectionID)
	switch {
	case apperr.CodeOf(err) == apperr.NotFound, err == nil && !c.Owned(who.Identity):
		return apperr.Unknown("connection_id", "connection", lease.ConnectionID.String())
	case err != nil:
		return err
	case c.EndsAt().Before(lease.EndsAt):
		refusal := apperr.InvalidField("connection_id", fmt.Sprintf("ends at %s, before the lease: prolong it, or "+
			"choose another", c.EndsAt().UTC().Format(time.RFC3339)))
		refusal.Code = apperr.Conflict
		return refusal
	}
	return c.Permits(now, lease.Permissions()...)
}

// identified is a lease with the id and the body of its request, as far as the caller chose the id.
func (c CreateLease) identified(who caller) (made domain.NewLease) {
	if c.ID == nil {
		return made
	}
	made.Lease.ID, made.Lease.ProjectID, made.BodySHA256 = c.ID.UUID, who.ProjectID, c.hash()
	return made
}

// draft is the lease of a request.
func (s service) draft(ctx context.Context, who caller, in CreateLease) (made domain.NewLease, err error) {
	now, err := s.store.Now(ctx)
	if err != nil {
		return made, err
	}
	made, err = in.Terms().NewLease(domain.Lease{
		ID: in.ID.OrNil(), ProjectID: who.ProjectID, DomainID: who.DomainID, UserID: who.UserID, Name: in.Name,
		Actor: domain.ActorFrom(ctx), Enforce: in.Enforce,
		ConnectionID: in.ConnectionID.OrNil(), SharesConnection: in.ConnectionID != nil,
	}, s.rules, now)
	if err != nil {
		return made, err
	}
	made.BodySHA256 = in.identified(who).BodySHA256
	lease := &made.Lease
	var pool hostPool
	volumes := volumePool{
		cloud: who.cloud, instances: s.instances, projectID: who.ProjectID, isNow: !lease.StartsAt.After(now),
		servers: map[int]leasedServer{},
	}
	for n, r := range in.Reservations {
		if r.Type == domain.VolumeReservation {
			reservation, err := volumes.reservation(ctx, in, n)
			if err != nil {
				return made, err
			}
			lease.Reservations = append(lease.Reservations, reservation)
			continue
		}
		if r.Type == domain.HostReservation && pool.all == nil {
			if pool, err = s.hostPool(ctx, who.cloud); err != nil {
				return made, err
			}
		}
		reservation, err := pool.reservation(ctx, n, r)
		if err == nil && r.ServerID != nil {
			reservation.Connect, err = toConnect(ctx, who.cloud, *lease, n, r.ServerID.String(), now)
		}
		if err != nil {
			return made, err
		}
		lease.Reservations = append(lease.Reservations, reservation)
	}
	return made, lease.CheckOnEnd()
}

// toConnect is the instance of a server, which is connected in the transaction of the lease.
func toConnect(
	ctx context.Context, cloud *openstack.Session, lease domain.Lease, n int, server string, now time.Time,
) (*domain.Instance, error) {
	wanted := domain.Instance{ProjectID: lease.ProjectID, ConnectionID: lease.ConnectionID, SeenAt: now}
	wanted, err := actions.ToConnect(ctx, cloud, server, lease.ProjectID, wanted)
	if apperr.CodeOf(err) == apperr.NotFound {
		err = apperr.Unknown(fmt.Sprintf("reservations[%d].server_id", n), "server", server)
	}
	return &wanted, err
}

// explain adds to a refusal by Postgres what would be right, in whole seconds. start is the lease's with these terms.
func explain(err error, terms domain.LeaseTerms, start time.Time) error {
	if err == nil {
		return nil
	}
	refusal := *apperr.As(err)
	refusal.Fields = slices.Clone(refusal.Fields)
	var free *domain.FreeError
	if errors.As(err, &free) && !free.FreeAt.IsZero() {
		second := free.FreeAt.UTC().Add(time.Second - 1).Truncate(time.Second)
		at, detail := second.Format(time.RFC3339), "is too early"
		if !terms.Start.IsZero() && start.After(terms.Start) {
			detail = "is in the past, and the lease would begin now"
		}
		refusal.Fields = append(refusal.Fields, apperr.Field{
			Field: "start", Detail: detail + ": what is reserved is free from " + at, Allowed: []string{at},
		})
		if terms.Duration.IsZero() && !free.FreeEnd.IsZero() {
			end := free.FreeEnd.UTC().Add(second.Sub(free.FreeAt)).Format(time.RFC3339Nano)
			refusal.Fields = append(refusal.Fields, apperr.Field{
				Field: "end", Detail: "is " + end + " for as long from then", Allowed: []string{end},
			})
		}
	}
	for n, f := range refusal.Fields {
		if f.Field == "end" && !terms.Duration.IsZero() {
			refusal.Fields[n].Field = "duration"
			refusal.Message = "duration: " + f.Detail
		}
	}
	return &refusal
}

// dryRun reports everything that would make the lease fail, as far as it shows now: the caller's rights, what Postgres
// refuses, and instances that Nova would not shelve before the start. Whether Keystone makes a trust for the token
// shows only when one is requested.
func (s service) dryRun(
	ctx context.Context, who caller, made domain.NewLease, terms domain.LeaseTerms,
) (domain.Lease, error) {
	checked, err := s.store.Check(ctx, made)
	rejected := explain(s.withJoining(ctx, err), terms, made.Lease.StartsAt)
	faults := []error{rejected, s.checkRights(ctx, who, made.Lease)}
	if made.Lease.StartsAt.After(checked.CreatedAt) || err != nil {
		for n, r := range made.Lease.Reservations {
			if r.InstanceID != uuid.Nil {
				faults = append(faults, s.checkInstance(ctx, who.cloud, made.Lease, n))
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
func (s service) checkRights(ctx context.Context, who caller, lease domain.Lease) error {
	switch {
	case lease.SharesConnection:
		return s.checkConnection(ctx, who, lease)
	case lease.Instances():
		return s.trusts.Check(who.Identity, delegation.ForLease(lease))
	}
	return nil
}

// checkInstance rejects an instance that Nova does not have, or would not shelve in its state.
func (s service) checkInstance(ctx context.Context, cloud *openstack.Session, lease domain.Lease, n int) error {
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
	case domain.InstanceActive, domain.InstanceStopped, domain.InstancePaused, domain.InstanceSuspended,
		domain.InstanceShelved:
		return nil
	default:
		refusal := apperr.InvalidField(field, fmt.Sprintf("is %s: before the start Nova shelves only servers that are "+
			"active, stopped, paused or suspended", state))
		refusal.Code = apperr.Conflict
		return refusal
	}
}

// join is one error with the fields of all; nil for none. It has the code and the message of the first. An error
// without a field is about the caller or the connection.
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
