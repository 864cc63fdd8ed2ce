package managed

import (
	"context"
	"errors"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// Flavors returns a page of the project's flavors by name. hasMore says that another page follows.
func (s service) Flavors(
	ctx context.Context, who domain.Identity, q domain.FlavorQuery,
) (page []domain.ResourceFlavor, hasMore bool, err error) {
	limit := q.Limit
	q.Limit++
	found, err := s.flavors.List(ctx, who.ProjectID, q)
	return found[:min(limit, len(found))], len(found) > limit, err
}

// Flavor returns a flavor of the project.
func (s service) Flavor(ctx context.Context, who domain.Identity, name string) (domain.ResourceFlavor, error) {
	return s.flavors.Get(ctx, who.ProjectID, name)
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
