package launch

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
)

// connectionStore is where connections are looked up, and what was seen through them.
type connectionStore interface {
	lookup.SeenStore
	Usable(ctx context.Context, who domain.Identity, id uuid.UUID) (found domain.Connection, now time.Time, err error)
}

// access is who acts, and how OpenStack is reached for it.
type access struct {
	domain.Access

	cloud session // nil when only run-connections can decrypt the delegation
}

// access resolves who acts: the caller with its own token, or through a connection (zero = none).
func (s service) access(ctx context.Context, who domain.Identity, token domain.Secret, connection uuid.UUID) (access, error) {
	if connection == uuid.Nil {
		return access{domain.OwnAccess(who), s.cloud.As(token, who.ProjectID)}, nil
	}
	c, now, err := s.connections.Usable(ctx, who, connection)
	return access{domain.DelegatedAccess(who, c, now), nil}, err
}

// mayOrder says whether anything can be ordered: else nothing is read through the connection.
func (a access) mayOrder() bool { return a.Permits(domain.MayAllocate) == nil }

// permissions are what the order takes. Servers that are not to be stopped are started.
func (req createOrder) permissions() []domain.Permission {
	if req.spec.Stopped {
		return []domain.Permission{domain.MayAllocate}
	}
	return []domain.Permission{domain.MayAllocate, domain.MayStart}
}

// withinLimits gives what the connection's limits do not allow, as far as the request says it by id: names of images
// and networks are looked up by run-connections, which holds what they mean against the limits, too.
func (s service) withinLimits(c domain.Connection, req createOrder, specs []domain.LaunchSpec) []error {
	var errs []error
	note := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	note(c.Limits.CheckRegion("connection_id", c.RegionIn(s.cloud.Region())))
	for n, i := range req.items {
		if specs[n].FlavorID != "" {
			note(c.Limits.CheckFlavor(i.sizeField(), specs[n].FlavorID, specs[n].FlavorName))
		}
		if isID(i.image.Value) {
			note(c.Limits.CheckImage(i.image.Field, i.image.Value))
		}
		for _, network := range i.networks {
			if isID(network.Value) {
				note(c.Limits.CheckNetwork(network.Field, network.Value))
			}
		}
	}
	return distinct(errs)
}

// isID says whether a text has the form of an id of an image or a network.
func isID(text string) bool { return len(text) == 36 && uuid.Validate(text) == nil }
