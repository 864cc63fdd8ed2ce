package leases

import (
	"context"
	"slices"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/flow"
)

const (
	// sharedFor is how old a list may be by which an active lease is looked after. It is read again before anything is
	// changed.
	sharedFor = 30 * time.Second
	// grantRounds is in how many minutes each flavor is granted again: no list shows the grants.
	grantRounds = 10
)

// Inventory is what OpenStack lists of all reservations. It is read once for the leases that are looked after together.
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

// isTaken reports whether a host is the reservation's, and the pool's no more.
func (s hostStep) isTaken(v view, name string) bool {
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
		!slices.ContainsFunc(s.desired(), func(name string) bool { return !s.isTaken(v, name) })
}

// keepFlavors makes flavors again that were deleted or changed, and grants all of them within grantRounds minutes.
func (s hostStep) keepFlavors(ctx context.Context) error {
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
