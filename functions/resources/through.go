package resources

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
	"github.com/cloudfn/cloudfn/shared/ordering"
)

// connectionStore is where connections are looked up, and what was seen through them.
type connectionStore interface {
	ordering.SeenStore
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
	seen, age, found, err := ordering.Seen(ctx, s.connections, s.wake, c)
	if err == nil && !found {
		none := apperr.New(apperr.Unavailable, "nothing was read through the connection %s yet", id)
		none.RetryAfter = retrySeen
		err = none
	}
	return seen, age, err
}

// through answers for a connection. A kind that could not be read is in errors, as one of the caller's own is.
func (h handler) through(ctx context.Context, who domain.Identity, connection, region string, wanted []string) (answer, error) {
	id, err := uuid.Parse(connection)
	if err != nil || len(connection) != 36 {
		return answer{}, apperr.Malformed("connection_id", "the id of a connection, a UUID", connection)
	}
	if region != "" {
		return answer{}, apperr.InvalidField("region", "does not go with connection_id: a connection has its own")
	}
	for _, kind := range wanted {
		if !slices.Contains(domain.SeenKinds(), kind) {
			return answer{}, apperr.InvalidField("kinds", "has "+kind+", which is not read through a connection", domain.SeenKinds()...)
		}
	}
	seen, age, err := h.svc.Through(ctx, who, id)
	if err != nil {
		return answer{}, err
	}
	seconds := int(age.Seconds())
	out := answer{AsOf: &seen.AsOf, Age: &seconds}
	for _, kind := range wanted {
		switch kind {
		case domain.SeenFlavors:
			out.Flavors = seen.Flavors
		case domain.SeenImages:
			out.Images = seen.Images
		case domain.SeenNetworks:
			out.Networks = seen.Networks
		case domain.SeenQuota:
			out.Quota = seen.Quota
		}
		if seen.IsCut(kind) {
			out.Truncated = append(out.Truncated, kind)
		}
		if why, failed := seen.Problems[kind]; failed {
			if out.Errors == nil {
				out.Errors = map[string]httpx.Problem{}
			}
			out.Errors[kind] = httpx.NewProblem(apperr.New(apperr.Code(why.Code), "%s", why.Detail))
		}
	}
	if len(out.Errors) == len(wanted) {
		errs := map[string]error{}
		for kind, why := range seen.Problems {
			errs[kind] = apperr.New(apperr.Code(why.Code), "%s", why.Detail)
		}
		return answer{}, worst(wanted, errs)
	}
	return out, nil
}
