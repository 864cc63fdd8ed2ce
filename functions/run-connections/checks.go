package runconnections

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

const (
	// A delegation that Keystone accepted within this time is used without another check: services may cache the
	// validity of its token for much longer.
	provenFor = 30 * time.Second
	// checkClaim is for how long a replica owns a check. Two logins with a pause between them end before that.
	checkClaim = 3 * loginTimeout
)

// confirm checks the delegation with Keystone, unless Keystone accepted it in the last half minute, and makes sure that
// there is a session.
func (s *service) confirm(ctx context.Context, c domain.Connection) error {
	// without the time of the last check the session decides
	if now, err := s.db.Now(ctx); err == nil && now.Sub(c.CheckedAt) > provenFor {
		if err := s.cloud.check(ctx, c); err != nil {
			return err
		}
	}
	_, err := s.cloud.in(ctx, c, nil)
	return err
}

// checks has workers check the connections when one is due, and those that are due some minutes later with it: then the
// function has nothing to do for minutes, however many connections there are.
func (s *service) checks(ctx context.Context, b *batch, end time.Time) error {
	clouds, err := s.delegations.CheckClouds(ctx)
	for _, cloud := range clouds {
		b.fill(ctx, "check", cloud, end, func() (isFound bool) {
			c, isFound, err := s.delegations.ClaimCheck(ctx, cloud, checkClaim)
			if err != nil {
				slog.WarnContext(ctx, "connections that are due to be checked", "cloud", cloud.AuthURL, "error", err)
			}
			if isFound {
				s.check(ctx, c)
			}
			return isFound
		})
	}
	return err
}

// check checks one delegation with Keystone, and then reads the resources that can be ordered through it. The
// connection stays as it is if the cloud does not answer.
func (s *service) check(ctx context.Context, c domain.Connection) {
	asked, err := s.db.Now(ctx)
	if err != nil { // the check is due again when its claim expires
		slog.WarnContext(ctx, "a connection is not checked", "connection_id", c.ID, "error", err)
		return
	}
	if err = s.cloud.check(ctx, c); err == nil {
		if s.readsResources && slices.Contains(c.Actions, domain.MayAllocate) { // else nothing can be ordered
			s.readResources(ctx, c)
		}
		return
	}
	s.unopened(ctx, c, err)
	s.record(ctx, c, func(ctx context.Context) error {
		return s.delegations.MarkUnchecked(ctx, c.ProjectID, c.ID, asked, apperr.As(err).Message)
	})
}
