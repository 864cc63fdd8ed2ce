package runconnections

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/golang-lru/v2/expirable"

	"github.com/cloudfn/cloudfn/shared/actions"
	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/flow"
	"github.com/cloudfn/cloudfn/shared/lookup"
	"github.com/cloudfn/cloudfn/shared/orders"
	"github.com/cloudfn/cloudfn/shared/seal"
)

// session is the part of OpenStack that this function needs, on behalf of the delegating user.
type session interface {
	orders.Cloud
	actions.Cloud
	lookup.Images
	Networks(context.Context) ([]domain.Network, error)
	SecurityGroups(context.Context) ([]domain.SecurityGroup, error)
	NetworkNames(context.Context) ([]domain.Network, error)
	Flavors(context.Context) ([]domain.Flavor, error)
	KeyPairs(context.Context) ([]domain.KeyPair, error)
	ImportKeyPair(ctx context.Context, name, publicKey string) (domain.KeyPair, error)
	DeleteKeyPair(ctx context.Context, name string) error
	ChangedServers(ctx context.Context, projectID string, since time.Time, marker string) (page []domain.Server,
		next string, err error)
	AllServers(ctx context.Context, projectID, marker string) (page []domain.Server, next string, err error)
	DeleteTrust(ctx context.Context, id string) error
	ActsAs() domain.ActsAs
}

// account is a session of the service account, to which trusts are made.
type account interface {
	WithTrust(ctx context.Context, trust string) (session, error)
	CheckTrust(ctx context.Context, id string) error
	FindTrusts(ctx context.Context, trustor, projectID string, end time.Time) (ids []string, err error)
}

const (
	loginTimeout = 20 * time.Second
	// A delegation that Keystone rejects is tried once more after this pause, before it counts as lost.
	refusalPause = 5 * time.Second
	keptSessions = 1000
	// A session is forgotten after this time. With the next one the flavors are read again.
	sessionTTL = time.Hour
)

// errLost says that Keystone no longer accepts the delegation, and that the delegation itself is the reason.
var errLost = errors.New("the delegation is lost")

// unopenedError says that no session could be opened, so the work was not tried or its result is unknown.
type unopenedError struct{ cause error }

func (e unopenedError) Error() string { return "no session: " + e.cause.Error() }
func (e unopenedError) Unwrap() error { return e.cause }

// sessions caches sessions by connection, from one event to the next: a login costs Keystone more than most calls cost
// Nova.
type sessions struct {
	login      func(context.Context) (account, error)
	credential func(ctx context.Context, c domain.Connection, secret domain.Secret) (session, error)
	seal       seal.PrivateKeys

	// current reads a connection as it is now: it may have been given another trust or secret since it was listed.
	current func(ctx context.Context, projectID string, id uuid.UUID) (domain.Connection, error)
	now     func(context.Context) (time.Time, error) // the database's clock
	// accepted is called after each login with the time before it, readFlavors with the first session of each entry.
	accepted    func(ctx context.Context, c domain.Connection, in session, asked time.Time)
	readFlavors func(ctx context.Context, c domain.Connection, in session)

	pause time.Duration // between two rejections that end a delegation
	own   flow.Shared[account]

	adding sync.Mutex
	kept   *expirable.LRU[uuid.UUID, *entry]
}

func newSessions(seal seal.PrivateKeys) *sessions {
	return &sessions{
		seal: seal, pause: refusalPause, kept: expirable.NewLRU[uuid.UUID, *entry](keptSessions, nil, sessionTTL),
		current: func(context.Context, string, uuid.UUID) (domain.Connection, error) {
			return domain.Connection{}, nil
		},
		now:         func(context.Context) (time.Time, error) { return time.Time{}, nil },
		accepted:    func(context.Context, domain.Connection, session, time.Time) {},
		readFlavors: func(context.Context, domain.Connection, session) {},
	}
}

// in is a session of the connection, another one than stale, for work through it.
func (s *sessions) in(ctx context.Context, c domain.Connection, stale session) (session, error) {
	e := s.entry(c.ID)
	if r := e.ready.Load(); r != nil && r.session != stale && c.Generation <= r.generation {
		return r.session, nil
	}
	if err := e.lock.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer e.lock.Release(1)
	e.update(c)
	defer e.publish()
	if !e.isOpen() || e.session == stale {
		if err := s.reopen(ctx, e); err != nil {
			return nil, err
		}
	}
	if !e.known {
		e.known = true
		ctx, cancel := context.WithTimeout(ctx, loginTimeout)
		defer cancel()
		s.readFlavors(ctx, c, e.session)
	}
	return e.session, nil
}

// check logs in to find out whether Keystone still accepts the delegation. The new session is kept.
func (s *sessions) check(ctx context.Context, c domain.Connection) error {
	e := s.entry(c.ID)
	if err := e.lock.Acquire(ctx, 1); err != nil {
		return err
	}
	defer e.lock.Release(1)
	e.update(c)
	defer e.publish()
	return s.reopen(ctx, e)
}

// reopen opens the session of an entry that the caller has locked. If the delegation is rejected, it reads the
// connection again: a trust is deleted soon after another one has replaced it.
func (s *sessions) reopen(ctx context.Context, e *entry) error {
	if e.lost != nil {
		return e.lost
	}
	asked, noTime := s.now(ctx)
	e.opened = time.Now()
	in, err := s.open(ctx, e.connection)
	if errors.Is(err, errLost) {
		in, err = s.openNewer(ctx, e, err)
	}
	if errors.Is(err, errLost) {
		in, err = s.confirmLost(ctx, e.connection, err)
	}
	if errors.Is(err, errLost) {
		e.lost = err
	}
	if err != nil {
		return err
	}
	e.session = in
	if noTime != nil { // so nothing can be recorded either
		slog.WarnContext(ctx, "a connection is not updated", "connection_id", e.connection.ID, "error", noTime)
		return nil
	}
	s.accepted(ctx, e.connection, in, asked)
	return nil
}

// openNewer opens a session with the connection's newer trust or secret. Without one the rejection stands.
func (s *sessions) openNewer(ctx context.Context, e *entry, refusal error) (session, error) {
	now, err := s.current(ctx, e.connection.ProjectID, e.connection.ID)
	switch {
	case apperr.CodeOf(err) == apperr.NotFound:
		return nil, refusal
	case err != nil:
		return nil, err // the delegation is not the reason
	case now.Generation <= e.connection.Generation || !now.Status.IsOpen():
		return nil, refusal
	}
	e.update(now)
	return s.open(ctx, now)
}

// forget drops the session of a connection that has ended.
func (s *sessions) forget(id uuid.UUID) { s.kept.Remove(id) }

// confirmLost tries once more after a pause: a Keystone that is just starting, or a replica of its database that lags
// behind, rejects valid delegations. A lost delegation is never used again, so one rejection must not end it.
func (s *sessions) confirmLost(ctx context.Context, c domain.Connection, refusal error) (session, error) {
	slog.InfoContext(ctx, "Keystone refuses a delegation, and is asked once more", "connection_id", c.ID,
		"error", refusal)
	select {
	case <-time.After(s.pause):
		return s.open(ctx, c)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *sessions) open(ctx context.Context, c domain.Connection) (session, error) {
	ctx, cancel := context.WithTimeout(ctx, loginTimeout)
	defer cancel()
	if c.Kind == domain.TrustConnection {
		return s.openTrust(ctx, c)
	}
	secret, err := s.seal.Open(c.SealedFor(), c.Secret)
	if err != nil {
		return nil, err // the operator's mistake
	}
	in, err := s.credential(ctx, c, secret)
	if refused(err) {
		return nil, fmt.Errorf("%w: %w", errLost, err)
	}
	return in, err
}

// openTrust distinguishes an invalid trust from an invalid service account: the account logs in anew, and reads the
// trust as its trustee.
func (s *sessions) openTrust(ctx context.Context, c domain.Connection) (session, error) {
	own, err := s.account(ctx, nil)
	if err != nil {
		return nil, err
	}
	in, err := own.WithTrust(ctx, c.DelegationID)
	if !refused(err) {
		return in, err
	}
	if own, err = s.account(ctx, own); err != nil {
		return nil, err
	}
	in, err = own.WithTrust(ctx, c.DelegationID)
	if !refused(err) {
		return in, err
	}
	switch known := own.CheckTrust(ctx, c.DelegationID); apperr.CodeOf(known) {
	case "", apperr.NotFound:
		return nil, fmt.Errorf("%w: %w", errLost, err)
	case apperr.Forbidden:
		return nil, apperr.Wrap(apperr.Internal, known,
			"the service account is not the trustee, or does not log in with a password")
	default:
		return nil, known
	}
}

// refused reports whether Keystone has rejected a login, rather than failed.
func refused(err error) bool {
	code := apperr.CodeOf(err)
	return code == apperr.Unauthenticated || code == apperr.Forbidden || code == apperr.NotFound
}

// account is a session of the service account, another one than stale. Its errors are never the fault of a delegation.
func (s *sessions) account(ctx context.Context, stale account) (account, error) {
	return s.own.Get(ctx, stale, func(ctx context.Context) (account, error) {
		own, err := s.login(ctx)
		if err != nil {
			return nil, apperr.Wrap(apperr.Unavailable, err, "the service account cannot log in")
		}
		return own, nil
	})
}
