package reconcilemanaged

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/golang-lru/v2/expirable"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/flow"
	"github.com/cloudfn/cloudfn/shared/managed"
)

// cloud is a session in the name of a user.
type cloud interface {
	In(region string) managed.Cloud
}

// account is a session of the service account, to which trusts are made.
type account interface {
	WithTrust(ctx context.Context, trust string) (cloud, error)
	CheckTrust(ctx context.Context, id string) error
}

const (
	loginTimeout = 20 * time.Second
	keptSessions = 1000
	sessionTTL   = 30 * time.Minute // before the shortest tokens that Keystone gives by default end
	confirmPause = 5 * time.Second  // before Keystone is asked once more about a trust that it refuses
)

// sessions opens trusts, and keeps them from one event to the next.
type sessions struct {
	login func(context.Context) (account, error)
	// lost is called when Keystone does not accept a trust any more.
	lost func(context.Context, domain.Connection)

	pause time.Duration // before Keystone is asked once more about a delegation that it refuses

	own  flow.Shared[account]
	kept *expirable.LRU[uuid.UUID, opened]
}

// opened is an open trust.
type opened struct {
	trust string
	cloud cloud
}

func newSessions(login func(context.Context) (account, error)) *sessions {
	return &sessions{
		login: login, pause: confirmPause, kept: expirable.NewLRU[uuid.UUID, opened](keptSessions, nil, sessionTTL),
		lost: func(context.Context, domain.Connection) {},
	}
}

// Open implements managed.Sessions.
func (s *sessions) Open(ctx context.Context, c domain.Connection, region string) (managed.Session, error) {
	known, ok := s.kept.Get(c.ID)
	if !ok || known.trust != c.DelegationID {
		in, err := s.open(ctx, c)
		if apperr.CodeOf(err) == apperr.DelegationLost {
			in, err = s.confirmLost(ctx, c, err)
		}
		if err != nil {
			return managed.Session{}, err
		}
		known = opened{c.DelegationID, in}
		s.kept.Add(c.ID, known)
	}
	return managed.Session{
		Cloud: known.cloud.In(region), ProjectID: c.ProjectID, DomainID: c.DomainID, UserID: c.UserID, Region: region,
	}, nil
}

// Forget implements managed.Sessions.
func (s *sessions) Forget(connection uuid.UUID) { s.kept.Remove(connection) }

// Lose implements managed.Sessions.
func (s *sessions) Lose(ctx context.Context, c domain.Connection) { s.lost(ctx, c) }

// confirmLost tries once more after a pause: a Keystone that is just starting, or a replica of its database that lags
// behind, rejects valid delegations. A lost delegation is never used again, so one rejection must not end it.
func (s *sessions) confirmLost(ctx context.Context, c domain.Connection, refusal error) (cloud, error) {
	slog.WarnContext(ctx, "Keystone refuses a trust of managed resources, and is asked once more",
		"connection_id", c.ID, "project_id", c.ProjectID, "error", refusal)
	select {
	case <-time.After(s.pause):
		return s.open(ctx, c)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// open distinguishes an invalid trust from an invalid service account: the account logs in anew, and reads the trust
// as its trustee.
func (s *sessions) open(ctx context.Context, c domain.Connection) (cloud, error) {
	ctx, cancel := context.WithTimeout(ctx, loginTimeout)
	defer cancel()
	own, err := s.account(ctx, nil)
	if err != nil {
		return nil, err
	}
	in, err := own.WithTrust(ctx, c.DelegationID)
	if !isRefusal(err) {
		return in, err
	}
	if own, err = s.account(ctx, own); err != nil {
		return nil, err
	}
	if in, err = own.WithTrust(ctx, c.DelegationID); !isRefusal(err) {
		return in, err
	}
	switch known := own.CheckTrust(ctx, c.DelegationID); apperr.CodeOf(known) {
	case "":
		return nil, apperr.Wrap(apperr.DelegationLost, err, "Keystone does not accept the trust any more: its user is "+
			"disabled, or has lost one of the roles %s in the project; declare the resource again",
			strings.Join(c.ActsAs.Roles, ", "))
	case apperr.NotFound:
		return nil, apperr.Wrap(apperr.DelegationLost, err, "Keystone does not have the trust any more: it was "+
			"deleted, or its user was; declare the resource again")
	case apperr.Forbidden:
		return nil, apperr.Wrap(apperr.Internal, known,
			"the service account is not the trustee, or does not log in with a password")
	default:
		return nil, known
	}
}

// account returns the session of the service account. It logs in anew when refused is the session that it has.
func (s *sessions) account(ctx context.Context, refused account) (account, error) {
	return s.own.Get(ctx, refused, func(ctx context.Context) (account, error) {
		own, err := s.login(ctx)
		if err != nil {
			return nil, apperr.Wrap(apperr.Unavailable, err, "the service account cannot log in")
		}
		return own, nil
	})
}

// isRefusal reports whether Keystone has rejected a login, rather than failed.
func isRefusal(err error) bool {
	code := apperr.CodeOf(err)
	return code == apperr.Unauthenticated || code == apperr.Forbidden || code == apperr.NotFound
}
