package resources

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
)

// retrySeen is the Retry-After while run-connections has not read the resources yet.
const retrySeen = 5 * time.Second

// OfConnection gives what can be ordered through a connection, as run-connections last read it: only that function can
// decrypt delegated credentials.
func (s service) OfConnection(
	ctx context.Context, who domain.Identity, id uuid.UUID,
) (seen domain.SeenResources, age time.Duration, err error) {
	c, now, err := s.connections.Usable(ctx, who, id)
	if err == nil {
		err = c.Permits(now, domain.MayAllocate)
	}
	if err != nil {
		return seen, 0, err
	}
	seen, age, found, err := lookup.Resources(ctx, s.connections, s.wake, c)
	if err == nil && !found {
		none := apperr.New(apperr.Unavailable, "nothing was read through the connection %s yet", id)
		none.RetryAfter = retrySeen
		err = none
	}
	return seen, age, err
}
