package launch

import (
	"context"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// access is who acts, and how OpenStack is reached for it.
type access struct {
	domain.Access

	cloud cloud // nil when only run-connections can decrypt the delegation
}

// access resolves who acts: the caller with its own token, or through a connection (zero = without).
func (s service) access(
	ctx context.Context, who domain.Identity, token domain.Secret, connection uuid.UUID,
) (access, error) {
	if connection == uuid.Nil {
		return access{domain.OwnAccess(who), s.cloud.As(token, who.ProjectID)}, nil
	}
	c, now, err := s.connections.Usable(ctx, who, connection)
	return access{domain.DelegatedAccess(who, c, now), nil}, err
}

// permissions are those that the order needs. Servers that are not stopped are started.
func (req createOrder) permissions() []domain.Permission {
	if req.spec.Stopped {
		return []domain.Permission{domain.MayAllocate}
	}
	return []domain.Permission{domain.MayAllocate, domain.MayStart}
}

// withinLimits lists violations of the connection's limits, as far as the request has ids: names of images and networks
// are resolved by run-connections, which compares them with the limits, too.
func (s service) withinLimits(c domain.Connection, req createOrder, specs []domain.LaunchSpec) []error {
	var wrong faults
	wrong.add(c.Limits.CheckRegion("connection_id", c.RegionIn(s.cloud.Region())))
	for n, i := range req.items {
		if specs[n].FlavorID != "" {
			wrong.add(c.Limits.CheckSize(i.sizeField(), specs[n]))
		}
		if isID(i.image.Value) {
			wrong.add(c.Limits.CheckImage(i.image.Field, i.image.Value))
		}
		for _, network := range i.networks {
			if isID(network.Value) {
				wrong.add(c.Limits.CheckNetwork(network.Field, network.Value))
			}
		}
	}
	return distinct(wrong)
}

// isID reports whether a text has the form of an id of an image or a network.
func isID(text string) bool { return len(text) == 36 && uuid.Validate(text) == nil }
