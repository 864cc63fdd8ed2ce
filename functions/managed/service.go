package managed

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/delegation"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/seal"
)

type service struct {
	store      postgres.Managed
	flavors    postgres.ResourceFlavors
	instances  postgres.Instances
	trusts     delegation.Trusts
	cloud      *openstack.Cloud
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
func unavailable(ctx context.Context, cloud *openstack.Session, p domain.Provider) (string, error) {
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
func (s service) checkAvailable(ctx context.Context, cloud *openstack.Session, d declaration) error {
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
func checkRegion(ctx context.Context, cloud *openstack.Session, field, region string) error {
	if region == "" {
		return nil
	}
	all, _, err := regions(ctx, cloud)
	if err == nil && !slices.Contains(all, region) {
		err = apperr.Unknown(field, "region", region, all...)
	}
	return err
}

// regions lists the regions of the catalog, and the one of this process; "" = unknown.
func regions(ctx context.Context, cloud *openstack.Session) (names []string, own string, err error) {
	all, err := cloud.Regions(ctx)
	for _, r := range all {
		if names = append(names, r.Name); r.Default {
			own = r.Name
		}
	}
	return names, own, err
}

// CreateFlavor stores a flavor.
func (s service) CreateFlavor(
	ctx context.Context, who domain.Identity, name string, in PutFlavor,
) (domain.ResourceFlavor, error) {
	made, err := in.flavor(who, name)
	if err != nil {
		return made, err
	}
	return s.flavors.Create(ctx, made, s.perProject)
}

// PutFlavor stores a flavor, or replaces the one of the name. A dry run only checks it.
func (s service) PutFlavor(
	ctx context.Context, who domain.Identity, name string, in PutFlavor, expected condition, dryRun bool,
) (stored domain.ResourceFlavor, created bool, err error) {
	made, err := in.flavor(who, name)
	if err != nil {
		return made, false, err
	}
	for range changeAttempts {
		before, err := s.flavors.Get(ctx, who.ProjectID, name)
		if err != nil && apperr.CodeOf(err) != apperr.NotFound {
			return before, false, err
		}
		if err := expected.check(before.Version, 0); err != nil {
			return before, false, err
		}
		isNew := before.Version == 0
		if !isNew {
			made.ID, made.Version, made.CreatedAt, made.UpdatedAt = before.ID, before.Version, before.CreatedAt,
				before.UpdatedAt
		} else if err := s.flavors.CheckRoom(ctx, who.ProjectID, s.perProject); err != nil {
			return made, false, err
		}
		if dryRun {
			if isNew {
				made.CreatedAt, err = s.store.Now(ctx)
				made.UpdatedAt = made.CreatedAt
			}
			return made, false, err
		}
		if isNew {
			stored, err = s.flavors.Create(ctx, made, s.perProject)
		} else {
			stored, err = s.flavors.Change(ctx, made)
		}
		if isNew && apperr.CodeOf(err) == apperr.Conflict || errors.Is(err, domain.ErrChanged) {
			continue
		}
		return stored, isNew && err == nil, err
	}
	return stored, false, errRace()
}

// DeleteFlavor deletes a flavor that no declaration of a resource names.
func (s service) DeleteFlavor(ctx context.Context, who domain.Identity, name string, expected condition) error {
	for range changeAttempts {
		before, err := s.flavors.Get(ctx, who.ProjectID, name)
		if err != nil {
			return err
		}
		if err := expected.check(before.Version, 0); err != nil {
			return err
		}
		if err := s.flavors.Delete(ctx, before); !errors.Is(err, domain.ErrChanged) {
			return err
		}
	}
	return errRace()
}

// flavor is the flavor that a request describes. Its spec may lack fields that its kind requires.
func (f PutFlavor) flavor(who domain.Identity, name string) (domain.ResourceFlavor, error) {
	made := domain.ResourceFlavor{
		ID: uuid.Must(uuid.NewV7()), ProjectID: who.ProjectID, DomainID: who.DomainID, UserID: who.UserID, Name: name,
		Description: f.Description,
	}
	kind, err := kindOf(f.Kind)
	if err != nil {
		return made, err
	}
	provider, _ := domain.ProviderOf(kind)
	if f.Provider != "" && f.Provider != provider.Name {
		return made, apperr.Unknown("provider", "provider of the kind "+string(kind), f.Provider, provider.Name)
	}
	made.Kind, made.Provider = kind, provider.Name
	made.Spec, err = templateOf(kind, f.Spec)
	return made, err
}

// Rollback declares an earlier revision again.
func (s service) Rollback(
	ctx context.Context, who domain.Identity, token domain.Secret, d declaration, number int,
) (outcome, error) {
	if err := s.trusts.Check(who, delegation.ForManaged(d.kind, time.Time{})); err != nil {
		return outcome{}, err
	}
	old, revision, err := s.Revision(ctx, who, d.kind, d.name, number)
	if err != nil {
		return outcome{Managed: old}, err
	}
	cloud, shared := s.cloud.As(token, who.ProjectID), &attempts{}
	return s.repeat(ctx, who, cloud, d, func(before domain.Managed) (domain.NewManaged, *plan, error) {
		if before.ID != old.ID {
			return domain.NewManaged{}, nil, apperr.New(apperr.NotFound, "the %s %q has no revision %d any more",
				d.kind, d.name, number)
		}
		made := domain.NewManaged{Managed: before, Before: before.Version, Repeats: number}
		made.UserID, made.Actor = who.UserID, domain.ActorFrom(ctx)
		made.Spec, made.Digest = revision.Spec, revision.Digest
		if err := checkMove(ctx, cloud, before, revision.Schedule); err != nil {
			return made, nil, err
		}
		if err := checkTransition(before, revision.Spec, revision.Schedule); err != nil {
			return made, nil, err
		}
		if err := s.actFor(ctx, cloud.InRegion(revision.Schedule.Region), before, &made); err != nil {
			return made, nil, err
		}
		if err := s.count(ctx, who, shared); err != nil {
			return made, nil, err
		}
		return made, nil, s.checkQuota(ctx, cloud.InRegion(revision.Schedule.Region), before, made.Managed)
	})
}
