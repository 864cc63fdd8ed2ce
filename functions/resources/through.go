package resources

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
)

// connectionStore is where connections are looked up, and what was seen through them.
type connectionStore interface {
	lookup.SeenStore
	Usable(ctx context.Context, who domain.Identity, id uuid.UUID) (found domain.Connection, now time.Time, err error)
}

// retrySeen is when it makes sense to ask again for what run-connections has not read yet.
const retrySeen = 5 * time.Second

// Through gives what can be ordered through a connection, as run-connections read it last: this function cannot open what is delegated.
func (s service) Through(ctx context.Context, who domain.Identity, id uuid.UUID) (seen domain.SeenResources, age time.Duration, err error) {
	c, now, err := s.connections.Usable(ctx, who, id)
	if err == nil {
		err = c.Permits(now, domain.MayAllocate)
	}
	if err != nil {
		return seen, 0, err
	}
	seen, age, found, err := lookup.Seen(ctx, s.connections, s.wake, c)
	if err == nil && !found {
		none := apperr.New(apperr.Unavailable, "nothing was read through the connection %s yet", id)
		none.RetryAfter = retrySeen
		err = none
	}
	return seen, age, err
}
