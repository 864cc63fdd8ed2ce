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

// checks has workers check the connections that are due: so many for each cloud, whatever the other clouds do.
func (s *service) checks(ctx context.Context, b *batch, end time.Time) error {
	clouds, err := s.delegations.CheckClouds(ctx)
	for _, cloud := range clouds {
		b.fill("checks", cloud, func() { s.checkCloud(ctx, cloud, end) })
	}
	return err
}

// checkCloud checks one connection after the other, until none is due or the event's time is over.
func (s *service) checkCloud(ctx context.Context, cloud domain.RemoteCloud, end time.Time) {
	for time.Now().Before(end) && ctx.Err() == nil {
		c, found, err := s.delegations.ClaimCheck(ctx, cloud, checkClaim)
		if err != nil {
			slog.WarnContext(ctx, "connections that are due to be checked", "cloud", cloud.AuthURL, "error", err)
		}
		if !found {
			return
		}
		s.check(ctx, c)
	}
}

// check checks one delegation with Keystone, and then reads the resources that can be ordered through it. The
// connection stays as it is if the cloud does not answer.
func (s *service) check(ctx context.Context, c domain.Connection) {
	began := time.Now()
	err := s.cloud.check(ctx, c)
	if err == nil {
		if s.readsResources && slices.Contains(c.Actions, domain.MayAllocate) { // else nothing can be ordered
			s.readResources(ctx, c)
		}
		return
	}
	s.unopened(ctx, c, err)
	s.record(ctx, c, func(ctx context.Context) error {
		return s.delegations.MarkUnchecked(ctx, c.ProjectID, c.ID, time.Since(began), apperr.As(err).Message)
	})
}
