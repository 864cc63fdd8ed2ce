package managed

import (
	"context"
	"slices"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/delegation"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/seal"
)

// session is the part of OpenStack that this function needs, with the caller's own token.
type session interface {
	delegation.Session
	HasService(ctx context.Context, service string) (bool, error)
	Regions(context.Context) (all []string, own string, err error)
	InRegion(region string) session
	Quota(context.Context) (domain.Quota, error)
	Flavors(context.Context) ([]domain.Flavor, error)
	NetworkNames(context.Context) ([]domain.Network, error)
	KeyPairs(context.Context) ([]domain.KeyPair, error)
	SecurityGroups(context.Context) ([]domain.SecurityGroup, error)
	lookup.Images
}

// openStack opens sessions.
type openStack interface {
	As(token domain.Secret, scope string) session
}

type service struct {
	store      postgres.Managed
	flavors    postgres.ResourceFlavors
	trusts     delegation.Trusts
	cloud      openStack
	key        seal.PublicKey
	trustFor   time.Duration
	perProject int // resources; 0 = unlimited
	wake       func(functions ...string)

	declarations postgres.RateLimit
}

// changeAttempts bounds the retries of a change while others change the same.
const changeAttempts = 3

func errRace() error {
	e := apperr.New(apperr.Unavailable, "others change it at the same time: repeat the request")
	e.RetryAfter = time.Second
	return e
}

// kindOf reads a kind. One that OpenStack has no home for is refused unless it is only looked for.
func kindOf(name string) (domain.Kind, error) {
	kind := domain.Kind(name)
	if slices.Contains(domain.Kinds(), kind) {
		return kind, nil
	}
	if slices.Contains(domain.UnsupportedKinds(), kind) {
		return kind, apperr.New(apperr.UnsupportedKind,
			"the kind %s is not supported, because OpenStack has no service for it", kind)
	}
	return kind, apperr.Unknown("kind", "kind", name, kindNames()...)
}

// kindFilter is kindOf for a list; without a name it stands for all kinds.
func kindFilter(name string) (domain.Kind, error) {
	if name == "" {
		return "", nil
	}
	return kindOf(name)
}

func kindNames() (names []string) {
	for _, kind := range slices.Concat(domain.Kinds(), domain.UnsupportedKinds()) {
		names = append(names, string(kind))
	}
	return names
}

// List returns a page of the project's resources. hasMore says that another page follows.
func (s service) List(
	ctx context.Context, who domain.Identity, q domain.ManagedQuery,
) (page []domain.Managed, hasMore bool, err error) {
	limit := q.Limit
	q.Limit++
	found, err := s.store.List(ctx, who.ProjectID, q)
	return found[:min(limit, len(found))], len(found) > limit, err
}

// Get returns a resource of the project.
func (s service) Get(ctx context.Context, who domain.Identity, kind domain.Kind, name string) (domain.Managed, error) {
	return s.store.Get(ctx, who.ProjectID, kind, name)
}

// Revisions returns the revisions of a resource, the newest first.
func (s service) Revisions(
	ctx context.Context, who domain.Identity, kind domain.Kind, name string,
) (domain.Managed, []domain.Revision, error) {
	m, err := s.store.Get(ctx, who.ProjectID, kind, name)
	if err != nil {
		return m, nil, err
	}
	found, err := s.store.Revisions(ctx, who.ProjectID, m.ID)
	return m, found, err
}

// Revision returns one revision of a resource.
func (s service) Revision(
	ctx context.Context, who domain.Identity, kind domain.Kind, name string, number int,
) (domain.Managed, domain.Revision, error) {
	m, all, err := s.Revisions(ctx, who, kind, name)
	if err != nil {
		return m, domain.Revision{}, err
	}
	found, err := pick(m, all, number)
	return m, found, err
}

// pick returns the revision of a number.
func pick(m domain.Managed, all []domain.Revision, number int) (domain.Revision, error) {
	n := slices.IndexFunc(all, func(r domain.Revision) bool { return r.Number == number })
	if n < 0 {
		return domain.Revision{}, apperr.New(apperr.NotFound, "the %s %q has no revision %d: it has %d to %d",
			m.Kind, m.Name, number, all[len(all)-1].Number, all[0].Number)
	}
	return all[n], nil
}

// offer is a provider, and why it is not available here; "" = it is.
type offer struct {
	domain.Provider

	Reason string
}

// Providers lists the providers, and whether the cloud has their services in a region; "" = this process's.
func (s service) Providers(
	ctx context.Context, who domain.Identity, token domain.Secret, region string,
) ([]offer, error) {
	cloud := s.cloud.As(token, who.ProjectID)
	if err := checkRegion(ctx, cloud, "region", region); err != nil {
		return nil, err
	}
	var all []offer
	for _, p := range domain.Providers() {
		reason, err := unavailable(ctx, cloud.InRegion(region), p)
		if err != nil {
			return nil, err
		}
		all = append(all, offer{p, reason})
	}
	return all, nil
}

// unavailable says why a provider is not available; "" = it is.
func unavailable(ctx context.Context, cloud session, p domain.Provider) (string, error) {
	switch {
	case slices.ContainsFunc(p.Kinds, func(k domain.Kind) bool {
		return slices.Contains(domain.UnsupportedKinds(), k)
	}):
		return "OpenStack has no service for it", nil
	case p.Service == "":
		return "", nil
	}
	has, err := cloud.HasService(ctx, p.Service)
	if err == nil && !has {
		return "the catalog of the cloud has no service " + p.Service, nil
	}
	return "", err
}

// checkAvailable rejects a region that the catalog does not have, and a kind whose service the region lacks.
func (s service) checkAvailable(ctx context.Context, cloud session, d declaration) error {
	region := d.in.Schedule.Region
	if err := checkRegion(ctx, cloud, "schedule.region", region); err != nil {
		return err
	}
	provider, _ := domain.ProviderOf(d.kind)
	reason, err := unavailable(ctx, cloud.InRegion(region), provider)
	if err == nil && reason != "" {
		err = apperr.New(apperr.UnsupportedHere, "the kind %s is not supported here: %s", d.kind, reason)
	}
	return err
}

// checkRegion rejects a region that the catalog does not have.
func checkRegion(ctx context.Context, cloud session, field, region string) error {
	if region == "" {
		return nil
	}
	all, _, err := cloud.Regions(ctx)
	if err == nil && !slices.Contains(all, region) {
		err = apperr.Unknown(field, "region", region, all...)
	}
	return err
}
