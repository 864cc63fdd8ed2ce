package leases

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// HostCloud is what reserving hosts takes. Each call is done when what it asks for is so already.
type HostCloud interface {
	FindAggregate(ctx context.Context, name string) (found domain.Aggregate, ok bool, err error)
	EnsureAggregate(ctx context.Context, name string, metadata map[string]string) (domain.Aggregate, error)
	DeleteAggregate(ctx context.Context, id int) error
	AddHost(ctx context.Context, a domain.Aggregate, host, providerID string) error
	RemoveHost(ctx context.Context, a domain.Aggregate, host, providerID string) error
	EnsureTrait(ctx context.Context, name string) error
	DeleteTrait(ctx context.Context, name string) error
	SetProviderTrait(ctx context.Context, providerID, trait string, present bool) error
	EnsureFlavor(ctx context.Context, f domain.PrivateFlavor) error
	GrantFlavor(ctx context.Context, id, projectID string) error
	DeleteFlavor(ctx context.Context, id string) error
	HostServers(ctx context.Context, host string) ([]domain.Server, error)
	TaggedServers(ctx context.Context, projectID, tag string) ([]domain.Server, error)
	TagServer(ctx context.Context, id, tag string) error
	ResizeServer(ctx context.Context, id, flavorID string) error
	ConfirmMigration(ctx context.Context, id string) error
	ComputeHosts(ctx context.Context) ([]domain.ComputeHost, error)
	HostInventories(ctx context.Context, hosts []domain.ComputeHost) error
	ProbeHost(ctx context.Context, host string) (domain.Isolation, error)
}

// The names in Nova and Placement. Whoever may change the aggregate of the pool says which hosts are in it.
const (
	PoolAggregate = "cloudfn-reservable"
	PoolTrait     = "CUSTOM_CLOUDFN_RESERVABLE"
)

// AggregateName is the name of the aggregate of a reservation.
func AggregateName(reservation uuid.UUID) string { return "cloudfn-lease-" + reservation.String() }

// TraitName is the trait of the hosts of a reservation.
func TraitName(reservation uuid.UUID) string {
	return "CUSTOM_CLOUDFN_LEASE_" + strings.ToUpper(strings.ReplaceAll(reservation.String(), "-", ""))
}

// requires is the metadata of an aggregate that keeps servers without the trait off its hosts.
func requires(trait string) map[string]string { return map[string]string{"trait:" + trait: "required"} }

// errNoAccount says why hosts wait.
var errNoAccount = apperr.New(apperr.Unavailable,
	"run-leases has no service account that may manage hosts: set LEASES_OS_USERNAME and LEASES_OS_PASSWORD")

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
	step := hostStep{pass: p, r: r, cloud: cloud}
	switch todo {
	case workFinish:
		return step.finish(ctx)
	case workStart:
		if err = step.heal(ctx); err == nil {
			err = step.converge(ctx)
		}
		if err == nil {
			r.Status = domain.ReservationActive
		}
		return err
	}
	return step.keep(ctx)
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
		if a.ReleasedAt.IsZero() && s.now.Before(a.Until) {
			names = append(names, a.Node)
		}
	}
	return names
}

// converge makes the reservation's hosts its own: first the trait, then the aggregate with its hosts, and when nobody
// else gets onto them the flavors that do.
func (s hostStep) converge(ctx context.Context) error {
	names, trait := s.desired(), TraitName(s.r.ID)
	held, err := s.Store.HeldByOthers(ctx, *s.r, names...)
	if err == nil && len(held) > 0 {
		err = apperr.Wrap(apperr.Conflict, errWaits, "another lease has not returned %s yet", strings.Join(held, ", "))
	}
	if err != nil {
		return err
	}
	if err := s.Store.Prepared(ctx, s.claim, *s.r, names...); err != nil {
		return err
	}
	if err := s.cloud.EnsureTrait(ctx, trait); err != nil {
		return err
	}
	aggregate, err := s.cloud.EnsureAggregate(ctx, AggregateName(s.r.ID), requires(trait))
	if err != nil {
		return err
	}
	s.r.AggregateID = aggregate.ID
	for _, name := range names {
		if err := s.renew(ctx); err != nil {
			return err
		}
		provider := s.nodes[name].ProviderID
		if err := s.cloud.SetProviderTrait(ctx, provider, trait, true); err != nil {
			return err
		}
		if err := s.cloud.AddHost(ctx, aggregate, name, provider); err != nil {
			return err
		}
	}
	for _, f := range s.r.Flavors {
		if err := s.renew(ctx); err != nil {
			return err
		}
		if err := s.flavor(ctx, f); err != nil {
			return err
		}
	}
	return nil
}

// flavor makes a private flavor, and lets the project use it.
func (s hostStep) flavor(ctx context.Context, f domain.LeasedFlavor) error {
	private := domain.PrivateFlavor{
		ID: f.ID, Name: f.Name, BaseID: f.BaseID,
		ExtraSpecs: map[string]string{
			"trait:" + PoolTrait: "required", "trait:" + TraitName(s.r.ID): "required",
		},
	}
	if err := s.cloud.EnsureFlavor(ctx, private); err != nil {
		return fmt.Errorf("flavor %s, a copy of %s: %w", f.Name, f.Base, err)
	}
	return s.cloud.GrantFlavor(ctx, f.ID, s.lease.ProjectID)
}
