package leases

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/actions"
	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/delegation"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

// session is the part of OpenStack that this function needs, with the caller's own token.
type session interface {
	delegation.Session
	actions.ServerReader
	Flavors(context.Context) ([]domain.Flavor, error)
	FlavorSpecs(ctx context.Context, id string) (map[string]string, error)
	ComputeHosts(context.Context) ([]domain.ComputeHost, error)
}

// openStack opens sessions.
type openStack interface {
	As(token domain.Secret, scope string) session
	Region() string
}

type service struct {
	store       postgres.Leases
	connections postgres.Connections
	instances   postgres.Instances
	nodes       postgres.Nodes
	isolations  postgres.Isolations
	trusts      delegation.Trusts
	cloud       openStack
	rules       domain.LeaseRules
	wake        func(functions ...string)
	changes     postgres.RateLimit
}

// List returns a page of the project's leases. hasMore says that another page follows.
func (s service) List(
	ctx context.Context, who domain.Identity, q domain.LeaseQuery,
) (page []domain.Lease, hasMore bool, err error) {
	limit := q.Limit
	q.Limit++
	found, err := s.store.List(ctx, who.ProjectID, q)
	return found[:min(limit, len(found))], len(found) > limit, err
}

// Get returns a lease of the project.
func (s service) Get(ctx context.Context, who domain.Identity, id uuid.UUID) (domain.Lease, error) {
	return s.store.Get(ctx, who.ProjectID, id)
}

// Delete ends a lease of the project, with onEnd instead of its own unless that is empty. A pending one may be
// cancelled at once; run-leases ends any other.
func (s service) Delete(
	ctx context.Context, who domain.Identity, id uuid.UUID, onEnd domain.OnEnd,
) (domain.Lease, error) {
	actor := domain.ActorOf(who, uuid.Nil)
	ended, err := s.store.End(domain.WithActor(ctx, actor), who.ProjectID, id, onEnd, actor)
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
