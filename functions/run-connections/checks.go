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
	// A delegation that Keystone accepted no longer ago is used without asking again: services may take its token for
	// good much longer.
	provenFor = 30 * time.Second
	// checkClaim is for how long a check is a replica's own. Two logins with a pause between them end before that.
	checkClaim = 3 * loginTimeout
)

// confirm asks Keystone whether it still accepts the delegation, when that is not known from the last half minute, and
// makes sure that there is a session.
func (s *service) confirm(ctx context.Context, c domain.Connection) error {
	if now, err := s.clock.Now(ctx); err == nil && now.Sub(c.CheckedAt) > provenFor { // a database that is away says nothing of a connection
		if err := s.cloud.check(ctx, c); err != nil {
			return err
		}
	}
	_, err := s.cloud.in(ctx, c, nil)
	return err
}

// checks has workers check the connections for which that is due: so many for each cloud, whatever the other clouds do.
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

// check asks Keystone whether it still accepts one delegation, and then reads what can be ordered through it. A cloud
// that gives no answer says nothing of it.
func (s *service) check(ctx context.Context, c domain.Connection) {
	began := time.Now()
	err := s.cloud.check(ctx, c)
	if err == nil {
		if s.seeing && slices.Contains(c.Actions, domain.MayAllocate) { // else nothing can be ordered
			s.see(ctx, c)
		}
		return
	}
	s.unopened(ctx, c, err)
	ctx, cancel := domain.Detached(ctx)
	defer cancel()
	if err := s.delegations.MarkUnchecked(ctx, c.ProjectID, c.ID, time.Since(began), apperr.As(err).Message); err != nil {
		slog.WarnContext(ctx, "connection not noted", "connection_id", c.ID, "error", err)
	}
}
