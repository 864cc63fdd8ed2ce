package runconnections

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

type (
	// requestStore keeps requests for connections.
	requestStore interface {
		Expire(ctx context.Context) (int, error)
		Retire(ctx context.Context, age time.Duration) error
	}
	// trustStore keeps the trusts that the function connections is about to make.
	trustStore interface {
		Abandoned(ctx context.Context, limit int, first, longest time.Duration) ([]domain.TrustIntent, error)
		IsStored(ctx context.Context, projectID, trust string) (bool, error)
		Gone(ctx context.Context, projectID string, id uuid.UUID) error
		Retire(ctx context.Context, age time.Duration) error
	}
)

// expireRequests ends requests for connections that nobody has decided in time.
func (s *service) expireRequests(ctx context.Context) error {
	n, err := s.requests.Expire(ctx)
	if n > 0 {
		s.wake("deliver-events")
	}
	return err
}

// abandonTrusts deletes trusts whose makers died before they stored the connections, if Keystone has made them.
func (s *service) abandonTrusts(ctx context.Context, b *batch) error {
	found, err := s.trusts.Abandoned(ctx, listed, time.Minute, longestRevocationPause)
	for _, intent := range found {
		b.begin("intent/"+intent.ID.String(), "connections", domain.RemoteCloud{}, func() { s.abandonTrust(ctx, intent) })
	}
	return err
}

func (s *service) abandonTrust(ctx context.Context, i domain.TrustIntent) {
	err := s.cloud.abandon(ctx, i, s.trusts.IsStored)
	if errors.Is(ctx.Err(), context.Canceled) {
		return // this process ends
	}
	ctx, cancel := ending(ctx)
	defer cancel()
	if err != nil && !errors.Is(err, errLost) {
		now, clockErr := s.clock.Now(ctx)
		if clockErr == nil && now.After(i.EndsAt.Add(clockSkew)) { // it has ended by itself
			err = nil
		}
	}
	if err == nil {
		err = s.trusts.Gone(ctx, i.ProjectID, i.ID)
	}
	if err != nil {
		slog.WarnContext(ctx, "a trust whose connection was never stored is not deleted yet, and is tried again", "connection_id", i.ID, "error", err)
	}
}

// abandon finds the trust in Keystone and deletes it, unless it is a connection's. nil means that Keystone does not have it; errLost is as with
// revoke.
func (s *sessions) abandon(ctx context.Context, i domain.TrustIntent, isStored func(ctx context.Context, projectID, trust string) (bool, error)) error {
	search, cancel := context.WithTimeout(ctx, loginTimeout)
	defer cancel()
	own, err := s.account(search, nil)
	if err != nil {
		return err
	}
	found, err := own.FindTrusts(search, i.UserID, i.ProjectID, i.EndsAt)
	if apperr.CodeOf(err) == apperr.Unauthenticated { // the account's token is over
		if own, err = s.account(search, own); err != nil {
			return err
		}
		found, err = own.FindTrusts(search, i.UserID, i.ProjectID, i.EndsAt)
	}
	if err != nil {
		return err
	}
	for _, id := range found {
		if stored, err := isStored(search, i.ProjectID, id); err != nil {
			return err
		} else if stored {
			continue
		}
		c := domain.Connection{ID: i.ID, ProjectID: i.ProjectID, UserID: i.UserID, Kind: domain.TrustConnection, DelegationID: id}
		if err := s.revoke(ctx, c); err != nil {
			return err
		}
	}
	return nil
}
