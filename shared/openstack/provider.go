package openstack

import (
	"context"
	"math/rand/v2"
	"net/url"
	"slices"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/placement/v1/resourceproviders"
	"github.com/gophercloud/gophercloud/v2/openstack/placement/v1/traits"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/flow"
)

// Resource providers of Placement. Whoever changes a provider says which generation of it was read, and gets 409 when
// it is another one meanwhile: nova-compute and every allocation change it, so a change is read and tried again.
// Placement also fails one of two changes at once with 500, when its database finds a deadlock; that is tried again,
// too.

// generationTries is how often a change of a provider is tried.
const generationTries = 20

// changeProvider reads a provider and writes it until nobody was faster. change reads and writes.
func (s *Session) changeProvider(
	ctx context.Context, microversion string, change func(*gophercloud.ServiceClient) error,
) error {
	placement, err := s.client(ctx, "placement", "", microversion)
	if err != nil {
		return err
	}
	for try := 1; ; try++ {
		err := classify("placement", change(placement))
		// the only conflict of these changes
		isStale := apperr.CodeOf(err) == apperr.Conflict
		if !isStale && !apperr.Retryable(err) || try == generationTries {
			return err
		}
		pause := firstPause + time.Duration(rand.Int64N(int64(firstPause))) //nolint:gosec // it only spreads the tries
		if !flow.Sleep(ctx, pause) {
			return classify("placement", ctx.Err())
		}
	}
}

// EnsureTrait makes a trait that providers can have. Its name begins with CUSTOM_.
func (s *Session) EnsureTrait(ctx context.Context, name string) error {
	placement, err := s.client(ctx, "placement", "", placementTraits)
	if err != nil {
		return err
	}
	return classify("placement", traits.Create(ctx, placement, name).ExtractErr())
}

// DeleteTrait deletes a trait. It is a Conflict while a provider has it.
func (s *Session) DeleteTrait(ctx context.Context, name string) error {
	placement, err := s.client(ctx, "placement", "", placementTraits)
	if err != nil {
		return err
	}
	return absentIsDone(classify("placement", traits.Delete(ctx, placement, name).ExtractErr()))
}

// ProviderTraits lists the traits of a provider.
func (s *Session) ProviderTraits(ctx context.Context, providerID string) ([]string, error) {
	placement, err := s.client(ctx, "placement", "", placementTraits)
	if err != nil {
		return nil, err
	}
	found, err := resourceproviders.GetTraits(ctx, placement, providerID).Extract()
	if err != nil {
		return nil, classify("placement", err)
	}
	return found.Traits, nil
}

// IsolatedProviders lists the ids of the providers that have the trait and are in the aggregate with this uuid.
func (s *Session) IsolatedProviders(ctx context.Context, aggregate, trait string) ([]string, error) {
	placement, err := s.client(ctx, "placement", "", placementRequired)
	if err != nil {
		return nil, err
	}
	var body struct {
		Providers []struct {
			ID string `json:"uuid"`
		} `json:"resource_providers"`
	}
	query := url.Values{"member_of": {aggregate}, "required": {trait}}
	err = get(ctx, placement, placement.ServiceURL("resource_providers")+"?"+query.Encode(), &body)
	if apperr.CodeOf(err) == apperr.Invalid { // no such trait
		return nil, nil
	}
	ids := make([]string, len(body.Providers))
	for n, p := range body.Providers {
		ids[n] = p.ID
	}
	return ids, err
}

// SetProviderTrait gives a provider a trait, or takes it. Its other traits stay. To give one to a provider that does
// not exist is NotFound; to take one from it is done.
func (s *Session) SetProviderTrait(ctx context.Context, providerID, trait string, present bool) error {
	err := s.changeProvider(ctx, placementTraits, func(placement *gophercloud.ServiceClient) error {
		now, err := resourceproviders.GetTraits(ctx, placement, providerID).Extract()
		if err != nil || slices.Contains(now.Traits, trait) == present {
			return err
		}
		return resourceproviders.UpdateTraits(ctx, placement, providerID, resourceproviders.UpdateTraitsOpts{
			ResourceProviderGeneration: now.ResourceProviderGeneration, Traits: with(now.Traits, trait, present),
		}).Err
	})
	if !present {
		return absentIsDone(err)
	}
	return err
}

// setProviderAggregate puts a provider into an aggregate of Placement, or takes it out.
func (s *Session) setProviderAggregate(ctx context.Context, providerID, uuid string, present bool) error {
	return s.changeProvider(ctx, placementAggregates, func(placement *gophercloud.ServiceClient) error {
		now, err := resourceproviders.GetAggregates(ctx, placement, providerID).Extract()
		if err != nil || slices.Contains(now.Aggregates, uuid) == present {
			return err
		}
		return resourceproviders.UpdateAggregates(ctx, placement, providerID, resourceproviders.UpdateAggregatesOpts{
			ResourceProviderGeneration: now.ResourceProviderGeneration, Aggregates: with(now.Aggregates, uuid, present),
		}).Err
	})
}

// with is the list with the item, or without it. It is never nil: Placement wants a list.
func with(list []string, item string, present bool) []string {
	out := slices.DeleteFunc(append([]string{}, list...), func(other string) bool { return other == item })
	if present {
		out = append(out, item)
	}
	return out
}
