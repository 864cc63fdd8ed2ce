package leases

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/flow"
)

// HostCloud is what reserving hosts takes. Each call is done when its result is there already.
type HostCloud interface {
	Aggregates(ctx context.Context) ([]domain.Aggregate, error)
	FindAggregate(ctx context.Context, name string) (found domain.Aggregate, ok bool, err error)
	EnsureAggregate(ctx context.Context, name string, metadata map[string]string) (domain.Aggregate, error)
	DeleteAggregate(ctx context.Context, id int) error
	AddHost(ctx context.Context, a domain.Aggregate, host, providerID string) error
	RemoveHost(ctx context.Context, a domain.Aggregate, host, providerID string) error
	EnsureTrait(ctx context.Context, name string) error
	DeleteTrait(ctx context.Context, name string) error
	SetProviderTrait(ctx context.Context, providerID, trait string, present bool) error
	IsolatedProviders(ctx context.Context, aggregate, trait string) ([]string, error)
	PrivateFlavors(ctx context.Context) ([]domain.PrivateFlavor, error)
	EnsureFlavor(ctx context.Context, f domain.PrivateFlavor) error
	GrantFlavor(ctx context.Context, id, projectID string) error
	DeleteFlavor(ctx context.Context, id string) error
	HostServers(ctx context.Context, host string) ([]domain.Server, error)
	TaggedServers(ctx context.Context, projectID, tag string) ([]domain.Server, error)
	UnplacedServers(ctx context.Context, projectID string) ([]domain.Server, error)
	TagServer(ctx context.Context, id, tag string) error
	ResizeServer(ctx context.Context, id, flavorID string) error
	ConfirmMigration(ctx context.Context, id string) error
	LockServer(ctx context.Context, id string) error
	UnlockServer(ctx context.Context, id string) error
	UnrescueServer(ctx context.Context, id string) error
	ResetServer(ctx context.Context, id string) error
	ComputeHosts(ctx context.Context) ([]domain.ComputeHost, error)
	HostInventories(ctx context.Context, hosts []domain.ComputeHost) error
	ProbeHost(ctx context.Context, host string) (domain.Isolation, error)
}

// leaseAggregate begins the names of the aggregates of reservations.
const leaseAggregate = "cloudfn-lease-"

// AggregateName is the name of the aggregate of a reservation.
func AggregateName(reservation uuid.UUID) string { return leaseAggregate + reservation.String() }

// errNoAccount says why hosts wait.
var errNoAccount = public(apperr.New(apperr.Unavailable,
	"run-leases has no service account that may manage hosts: set LEASES_OS_CLOUD, or where it runs alone "+
		"OS_USERNAME and OS_PASSWORD"),
	"the operator has not configured the service account that reserves hosts")

// session is a session of the service account.
func (p *pass) session(ctx context.Context) (Cloud, error) {
	if p.Cloud == nil {
		return nil, errNoAccount
	}
	if p.cloud != nil {
		return p.cloud, nil
	}
	var err error
	p.cloud, err = p.Cloud(ctx)
	return p.cloud, err
}

// hosts does the steps for the hosts of a reservation.
func (p *pass) hosts(ctx context.Context, todo work, r *domain.Reservation) error {
	isIdle := r.AggregateID == 0 && !slices.ContainsFunc(r.Allocations, isHeld)
	switch {
	case todo == workPrepare:
		return nil
	case todo == workFinish && isIdle: // nothing was begun
		r.Status = domain.ReservationEnded
		return nil
	}
	cloud, err := p.session(ctx)
	if err != nil {
		return err
	}
	if p.nodes == nil {
		if p.nodes, err = p.readNodes(ctx); err != nil {
			return err
		}
	}
	if p.Inventory == nil {
		p.Inventory = &Inventory{}
	}
	step := hostStep{pass: p, r: r, cloud: cloud}
	switch todo {
	case workFinish:
		return step.finish(ctx)
	case workStart:
		return step.start(ctx)
	}
	return step.maintain(ctx)
}

func (p *pass) readNodes(ctx context.Context) (map[string]domain.Node, error) {
	all, err := p.Nodes.Pool(ctx)
	byName := map[string]domain.Node{}
	for _, n := range all {
		byName[n.Name] = n
	}
	return byName, err
}

// isHeld reports whether a host may be the reservation's in Nova or Placement.
func isHeld(a domain.Allocation) bool { return !a.PreparedAt.IsZero() && a.ReleasedAt.IsZero() }

// hostStep is a step for the hosts of one reservation.
type hostStep struct {
	*pass

	r     *domain.Reservation
	cloud Cloud
}

// desired are the names of the hosts that the reservation has now.
func (s hostStep) desired() (names []string) {
	for _, a := range s.r.Allocations {
		if a.ReleasedAt.IsZero() && a.ReplacedAt.IsZero() && s.now.Before(a.Until) {
			names = append(names, a.Node)
		}
	}
	return names
}

// start makes the reservation's hosts its own. It continues where an earlier pass has ended.
func (s hostStep) start(ctx context.Context) error {
	v, err := s.view(ctx, 0)
	if err == nil {
		err = s.replaceUnfit(ctx, v)
	}
	if err == nil {
		_, err = s.converge(ctx, v)
	}
	for _, f := range s.r.Flavors {
		if err == nil {
			err = s.flavor(ctx, f)
		}
	}
	if err == nil {
		s.r.Status = domain.ReservationActive
	}
	return err
}

// converge makes the reservation's hosts its own: first the trait and the aggregate, then they leave the pool's
// aggregate. Hosts that are its own already cost no call. Flavors that require the trait come after it, when no other
// server can land there. It returns the view that it went by.
func (s hostStep) converge(ctx context.Context, v view) (view, error) {
	names := s.desired()
	held, err := s.Store.HeldByOthers(ctx, *s.r, names...)
	if err == nil && len(held) > 0 {
		err = fmt.Errorf("%w: %w", notReturned(held...), errWaits)
	}
	if err != nil {
		return v, err
	}
	if err := s.Store.Prepared(ctx, s.claim, *s.r, names...); err != nil {
		return v, err
	}
	if !s.isWhole(v) { // others may have returned hosts to the pool since it was read
		if v, err = s.view(ctx, 0); err != nil {
			return v, err
		}
	}
	s.r.AggregateID = v.own.ID
	if names = slices.DeleteFunc(names, func(name string) bool { return s.isReserved(v, name) }); len(names) > 0 {
		v.own, err = isolation(ctx, s.cloud, AggregateName(s.r.ID), s.r.Trait)
		s.r.AggregateID = v.own.ID
	}
	for _, name := range names {
		if err == nil && !s.isIsolated(v, name) {
			err = enter(ctx, s.cloud, v.own, s.r.Trait, s.node(name))
		}
		if err == nil && slices.Contains(v.pool.Hosts, name) {
			err = s.allocate(ctx, v.pool, name)
		}
		if err != nil {
			return v, err
		}
	}
	return v, nil
}

// notReturned is a Conflict about hosts that another lease still holds.
func notReturned(hosts ...string) error {
	return public(apperr.New(apperr.Conflict, "another lease has not returned %s yet", strings.Join(hosts, ", ")),
		"another lease has not returned its hosts yet")
}

// allocate takes a host out of the pool's aggregate, and with that lets the reservation's servers onto it. Nothing may
// be on it before.
func (s hostStep) allocate(ctx context.Context, pool domain.Aggregate, name string) error {
	others, err := s.others(ctx, name)
	if err == nil && s.r.Status == domain.ReservationPending {
		err = CheckServers(name, others)
	}
	if err != nil {
		return err
	}
	// What makeUnreservable may have done ends first: once the host has left the pool's aggregate, no pass comes here
	// again.
	if _, err := s.Nodes.SetPool(ctx, name, domain.NodeJoining, domain.NodeReservable, ""); err != nil {
		return err
	}
	return s.cloud.RemoveHost(ctx, pool, name, s.nodes[name].ProviderID)
}

// node is a host of the reservation, also one that has left the cloud.
func (s hostStep) node(name string) domain.Node {
	node := s.nodes[name]
	node.Name = name
	return node
}

// flavor makes a private flavor, and lets the project use it.
func (s hostStep) flavor(ctx context.Context, f domain.LeasedFlavor) error {
	private := domain.PrivateFlavor{ID: f.ID, Name: f.Name, BaseID: f.BaseID, ExtraSpecs: requires(s.r.Trait)}
	err := s.cloud.EnsureFlavor(ctx, private)
	switch {
	case apperr.CodeOf(err) == apperr.NotFound:
		return public(err, fmt.Sprintf("flavor %s cannot be made: its base %s no longer exists", f.Name, f.Base))
	case err != nil:
		return fmt.Errorf("flavor %s, a copy of %s: %w", f.Name, f.Base, err)
	}
	return s.cloud.GrantFlavor(ctx, f.ID, s.lease.ProjectID)
}

// The steps for hosts are done with an admin's account, so their errors name hosts and aggregates, and repeat what Nova
// says to an admin. They are for the log, and for admins. The owner of a lease reads only words that are public.

// publicError is an error of a step for hosts with the words for the owner of the lease.
type publicError struct {
	error

	words string
}

// Unwrap gives the error to errors.Is and errors.As.
func (e publicError) Unwrap() error { return e.error }

// public gives an error words for the owner of a lease. They name no host, no aggregate and nothing of Nova's.
func public(err error, words string) error { return publicError{err, words} }

// hostProblem is why a step for hosts has failed, as the owner of the lease reads it.
func hostProblem(err error) *domain.Problem {
	problem := domain.ProblemOf(err)
	if shown, ok := errors.AsType[publicError](err); ok {
		problem.Detail = shown.words
		return problem
	}
	switch apperr.Code(problem.Code) {
	case apperr.Internal:
	case apperr.Unavailable, apperr.Timeout, apperr.BadGateway, apperr.RateLimited, apperr.ClientGone:
		problem.Detail = "OpenStack does not answer the service account that reserves hosts: the call is repeated"
	default:
		problem.Detail = "OpenStack refused a call of the service account that reserves hosts: the operator finds " +
			"the reason in the log of run-leases, under the id of the lease"
	}
	return problem
}

const (
	// sharedFor is how old a list may be by which an active lease is reconciled. It is read again before anything is
	// changed.
	sharedFor = 30 * time.Second
	// grantRounds is in how many minutes each flavor is granted again: no list shows the grants.
	grantRounds = 10
)

// Inventory is what OpenStack lists of all reservations. It is read once for the leases that are reconciled together.
type Inventory struct {
	aggregates list[[]domain.Aggregate]
	flavors    list[map[string]domain.PrivateFlavor] // by id
}

// list is a list that callers share. One of them reads it at a time.
type list[T any] struct{ last flow.Shared[*reading[T]] }

type reading[T any] struct {
	began time.Time
	items T
}

// get returns the list, which is no older than oldest: 0 = it is read now.
func (l *list[T]) get(
	ctx context.Context, oldest time.Duration, read func(context.Context) (T, error),
) (items T, err error) {
	notBefore := time.Now().Add(-oldest)
	last := l.last.Current()
	for last == nil || last.began.Before(notBefore) {
		last, err = l.last.Get(ctx, last, func(ctx context.Context) (*reading[T], error) {
			began := time.Now()
			items, err := read(ctx)
			return &reading[T]{began, items}, err
		})
		if err != nil {
			return items, err
		}
	}
	return last.items, nil
}

// view is what OpenStack shows of a reservation's hosts.
type view struct {
	aggregates []domain.Aggregate
	own, pool  domain.Aggregate // the reservation's and the pool's; ID 0 = it does not exist
	isolated   []string         // ids of the providers that are in own and have its trait, for Placement
}

// view returns what OpenStack shows, by a list that is no older than oldest.
func (s hostStep) view(ctx context.Context, oldest time.Duration) (v view, err error) {
	v.aggregates, err = s.Inventory.aggregates.get(ctx, oldest, s.cloud.Aggregates)
	for _, a := range v.aggregates {
		switch a.Name {
		case AggregateName(s.r.ID):
			v.own = a
		case PoolAggregate:
			v.pool = a
		}
	}
	if err == nil && len(v.own.Hosts) > 0 && v.own.Metadata[required(s.r.Trait)] == "required" {
		v.isolated, err = s.cloud.IsolatedProviders(ctx, v.own.UUID, s.r.Trait)
	}
	return v, err
}

// isIsolated reports whether only servers with the reservation's trait get onto a host.
func (s hostStep) isIsolated(v view, name string) bool {
	return slices.Contains(v.own.Hosts, name) && slices.Contains(v.isolated, s.nodes[name].ProviderID)
}

// isReserved reports whether a host is the reservation's, and the pool's no more.
func (s hostStep) isReserved(v view, name string) bool {
	return s.isIsolated(v, name) && !slices.Contains(v.pool.Hosts, name)
}

// surplus are the hosts that the reservation holds and that others have replaced.
func (s hostStep) surplus(v view) []string {
	desired := s.desired()
	return slices.DeleteFunc(s.heldHosts(v.own), func(name string) bool { return slices.Contains(desired, name) })
}

// isWhole reports whether the reservation has all of its hosts, and no others.
func (s hostStep) isWhole(v view) bool {
	return len(s.surplus(v)) == 0 &&
		!slices.ContainsFunc(s.desired(), func(name string) bool { return !s.isReserved(v, name) })
}

// ensureFlavors makes flavors again that were deleted or changed, and grants all of them within grantRounds minutes.
func (s hostStep) ensureFlavors(ctx context.Context) error {
	known, err := s.privateFlavors(ctx, sharedFor)
	if err == nil && slices.ContainsFunc(s.r.Flavors, func(f domain.LeasedFlavor) bool { return !s.isMade(f, known) }) {
		known, err = s.privateFlavors(ctx, 0)
	}
	for n, f := range s.r.Flavors {
		isDue := n%grantRounds == int(s.now.Unix()/60%grantRounds)
		switch {
		case err != nil:
		case !s.isMade(f, known):
			err = s.flavor(ctx, f)
		case isDue:
			err = s.cloud.GrantFlavor(ctx, f.ID, s.lease.ProjectID)
		}
	}
	return err
}

func (s hostStep) privateFlavors(ctx context.Context, oldest time.Duration) (map[string]domain.PrivateFlavor, error) {
	return s.Inventory.flavors.get(ctx, oldest, func(ctx context.Context) (map[string]domain.PrivateFlavor, error) {
		byID := map[string]domain.PrivateFlavor{}
		all, err := s.cloud.PrivateFlavors(ctx)
		for _, f := range all {
			byID[f.ID] = f
		}
		return byID, err
	})
}

// isMade reports whether a flavor of the reservation is there.
func (s hostStep) isMade(f domain.LeasedFlavor, known map[string]domain.PrivateFlavor) bool {
	return known[f.ID].ExtraSpecs[required(s.r.Trait)] == "required"
}
