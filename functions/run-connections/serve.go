package runconnections

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// serve works on the orders and actions of one connection. Orders take longer than actions, so they have a pool of
// their own.
func (s *service) serve(ctx context.Context, b *batch, c domain.Connection) {
	if !c.Status.IsOpen() {
		s.abandon(ctx, c)
		return
	}
	if err := s.confirm(ctx, c); err != nil {
		s.unopened(ctx, c, err)
		return
	}
	ids, err := s.delegations.Orders(ctx, c.ProjectID, c.ID, listed)
	b.fail(failedFor("orders", c, err))
	for _, id := range ids {
		b.begin("order/"+id.String(), orderTasks, cloudOf(c), func() { s.order(ctx, c, id) })
	}
	b.fail(failedFor("actions", c, s.act(ctx, c)))
}

// failedFor is the error of reading what is due for a connection. The event that gets it is repeated.
func failedFor(what string, c domain.Connection, err error) error {
	if err != nil {
		err = fmt.Errorf("%s of connection %s: %w", what, c.ID, err)
	}
	return err
}

// accepted records that Keystone, asked at that time, accepted the delegation, and with which roles.
func (s *service) accepted(ctx context.Context, c domain.Connection, in session, asked time.Time) {
	s.record(ctx, c, func(ctx context.Context) error {
		return s.delegations.MarkChecked(ctx, c.ProjectID, c.ID, asked, in.ActsAs().Roles)
	})
}

// record writes a change of the connection, also when the event's time is up.
func (s *service) record(ctx context.Context, c domain.Connection, write func(context.Context) error) {
	ctx, cancel := domain.Detached(ctx)
	defer cancel()
	if err := write(ctx); err != nil {
		slog.WarnContext(ctx, "a connection is not updated", "connection_id", c.ID, "error", err)
	}
}

// readFlavors records the flavors of the connection's cloud.
func (s *service) readFlavors(ctx context.Context, c domain.Connection, in session) {
	flavors, err := in.Flavors(ctx)
	if err != nil { // they may not be among what the credential is good for
		slog.WarnContext(ctx, "flavors of a connection", "connection_id", c.ID, "error", err)
		return
	}
	s.record(ctx, c, func(ctx context.Context) error {
		return s.delegations.MarkReachable(ctx, c.ProjectID, c.ID, flavors)
	})
}

// unopened records why there is no session: the delegation is lost, or the connection pauses. A delegation is not lost
// when its cloud is away, or when our own key or account is wrong.
func (s *service) unopened(ctx context.Context, c domain.Connection, cause error) {
	if errors.Is(ctx.Err(), context.Canceled) {
		return // this process ends
	}
	s.record(ctx, c, func(ctx context.Context) error {
		if !errors.Is(cause, errLost) {
			slog.ErrorContext(ctx, "a connection cannot be used now", "connection_id", c.ID, "error", cause)
			return s.markUnreachable(ctx, c)
		}
		slog.WarnContext(ctx, "a delegation is lost", "connection_id", c.ID, "error", cause)
		_, err := s.connections.Lose(ctx, c, domain.LostReason(c.Kind), c.Kind != domain.TrustConnection)
		s.wakeOfEnd(c)
		return err
	})
}

func (s *service) markUnreachable(ctx context.Context, c domain.Connection) error {
	return s.delegations.MarkUnreachable(ctx, c.ProjectID, c.ID, firstPause, longestPause)
}

// wakeFor wakes the functions that have work after a change: deliver-events, and poll-instances for servers of this
// cloud.
func (s *service) wakeFor(c domain.Connection) {
	if c.Remote() {
		s.wake("deliver-events")
		return
	}
	s.wake("deliver-events", "poll-instances")
}
