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
	"github.com/cloudfn/cloudfn/shared/lookup"
	"github.com/cloudfn/cloudfn/shared/orders"
)

// session is the part of OpenStack that this function needs, as whoever has delegated.
type session interface {
	orders.Cloud
	actions.Cloud
	lookup.Images
	Networks(context.Context) ([]domain.Network, error)
	NetworkNames(context.Context) ([]domain.Network, error)
	Flavors(context.Context) ([]domain.Flavor, error)
	KeyPairs(context.Context) ([]domain.KeyPair, error)
	ImportKeyPair(ctx context.Context, name, publicKey string) (domain.KeyPair, error)
	DeleteKeyPair(ctx context.Context, name string) error
	ChangedServers(ctx context.Context, projectID string, since time.Time, marker string) (page []domain.Server, next string, err error)
	AllServers(ctx context.Context, projectID, marker string) (page []domain.Server, next string, err error)
	DeleteTrust(ctx context.Context, id string) error
	ActsAs() domain.ActsAs
}

// account is a session of the service account, to which trusts are made.
type account interface {
	WithTrust(ctx context.Context, trust string) (session, error)
	KnowsTrust(ctx context.Context, id string) error
	FindTrusts(ctx context.Context, trustor, projectID string, end time.Time) (ids []string, err error)
}

// opener opens what was sealed for this function.
type opener interface {
	Open(purpose string, sealed []byte) (domain.Secret, error)
}

const (
	loginTimeout = 20 * time.Second
	// A delegation that Keystone refuses is tried once more after this pause, before it counts as lost.
	refusalPause = 5 * time.Second
	keptSessions = 1000
	// A session is forgotten after this time. With the next one the flavors are read again.
	sessionTTL = time.Hour
)

// errLost says that Keystone does not accept the delegation any more, for a reason that is the delegation's own.
var errLost = errors.New("the delegation is lost")

// unopenedError says that there is no session, so that nothing can be said of the work that it was to do.
type unopenedError struct{ cause error }

func (e unopenedError) Error() string { return "no session: " + e.cause.Error() }
func (e unopenedError) Unwrap() error { return e.cause }

// sessions keeps sessions from one event to the next, by connection: a login costs Keystone more than most of what is
// asked of Nova.
type sessions struct {
	login      func(context.Context) (account, error)
	credential func(ctx context.Context, c domain.Connection, secret domain.Secret) (session, error)
	seal       opener

	// current reads a connection as it is now: it may have been given another trust or secret since it was listed.
	current func(ctx context.Context, projectID string, id uuid.UUID) (domain.Connection, error)
	// accepted is called after each login, which took so long, and readFlavors with the first session of each entry.
	accepted    func(ctx context.Context, c domain.Connection, in session, took time.Duration)
	readFlavors func(ctx context.Context, c domain.Connection, in session)

	pause time.Duration // between two refusals that end a delegation
	own   struct {
		sync.Mutex
		account account // nil before the first login
	}
	adding sync.Mutex
	kept   *expirable.LRU[uuid.UUID, *entry]
}

// entry is what is known of one connection.
type entry struct {
	sync.Mutex // while it is being opened the others wait: they would only log in, too

	connection domain.Connection // as it was last seen: of its newest generation
	session    session
	opened     time.Time // when Keystone was last asked for one
	known      bool      // the flavors have been read with one
	lost       error     // then nobody tries again
}

func newSessions(seal opener) *sessions {
	return &sessions{
		seal: seal, pause: refusalPause, kept: expirable.NewLRU[uuid.UUID, *entry](keptSessions, nil, sessionTTL),
		current:     func(context.Context, string, uuid.UUID) (domain.Connection, error) { return domain.Connection{}, nil },
		accepted:    func(context.Context, domain.Connection, session, time.Duration) {},
		readFlavors: func(context.Context, domain.Connection, session) {},
	}
}

// in is a session of the connection, another one than stale, for work through it.
func (s *sessions) in(ctx context.Context, c domain.Connection, stale session) (session, error) {
	e := s.entry(c.ID)
	e.Lock()
	defer e.Unlock()
	e.see(c)
	if e.lost == nil && e.known && e.session != nil && e.session != stale {
		return e.session, nil
	}
	if e.session == nil || e.session == stale || e.lost != nil {
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

// check asks Keystone whether it still accepts the delegation. The new session is kept.
func (s *sessions) check(ctx context.Context, c domain.Connection) error {
	e := s.entry(c.ID)
	e.Lock()
	defer e.Unlock()
	e.see(c)
	return s.reopen(ctx, e)
}

// see has an entry go on with what the connection has now. A session of another trust or secret is not used again.
func (e *entry) see(c domain.Connection) {
	switch {
	case c.Generation > e.connection.Generation:
		e.session, e.known, e.lost = nil, false, nil
	case c.Generation < e.connection.Generation:
		return // it was read before it was changed
	}
	e.connection = c
}

// reopen opens the session of an entry that the caller has locked. A connection whose delegation is refused is looked
// at again: its trust is deleted soon after another one has replaced it.
func (s *sessions) reopen(ctx context.Context, e *entry) error {
	if e.lost != nil {
		return e.lost
	}
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
	s.accepted(ctx, e.connection, in, time.Since(e.opened))
	return nil
}

// openNewer opens a session with what the connection has been given since it was read; without that the refusal stands.
func (s *sessions) openNewer(ctx context.Context, e *entry, refusal error) (session, error) {
	now, err := s.current(ctx, e.connection.ProjectID, e.connection.ID)
	switch {
	case apperr.CodeOf(err) == apperr.NotFound:
		return nil, refusal
	case err != nil:
		return nil, err // it says nothing of the delegation
	case now.Generation <= e.connection.Generation || !now.Status.IsOpen():
		return nil, refusal
	}
	e.see(now)
	return s.open(ctx, now)
}

func (s *sessions) entry(id uuid.UUID) *entry {
	s.adding.Lock()
	defer s.adding.Unlock()
	e, ok := s.kept.Get(id)
	if !ok {
		e = &entry{}
		s.kept.Add(id, e)
	}
	return e
}

// forget is for a connection that has ended.
func (s *sessions) forget(id uuid.UUID) { s.kept.Remove(id) }

// confirmLost asks once more after a pause: a Keystone that is just starting, or a replica of its database that lags
// behind, refuses what is good. A lost delegation is never used again, so one refusal must not end it.
func (s *sessions) confirmLost(ctx context.Context, c domain.Connection, refusal error) (session, error) {
	slog.InfoContext(ctx, "Keystone refuses a delegation, and is asked once more", "connection_id", c.ID, "error", refusal)
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
		return nil, err // our own mistake
	}
	in, err := s.credential(ctx, c, secret)
	if refused(err) {
		return nil, fmt.Errorf("%w: %w", errLost, err)
	}
	return in, err
}

// openTrust tells a trust that is not good any more from a service account that is not: the account logs in anew, and
// looks at the trust as its trustee.
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
	switch known := own.KnowsTrust(ctx, c.DelegationID); apperr.CodeOf(known) {
	case "", apperr.NotFound:
		return nil, fmt.Errorf("%w: %w", errLost, err)
	case apperr.Forbidden:
		return nil, apperr.Wrap(apperr.Internal, known, "the service account is not the trustee, or does not log in with a password")
	default:
		return nil, known
	}
}

// refused says whether Keystone has refused a login, and not only failed.
func refused(err error) bool {
	code := apperr.CodeOf(err)
	return code == apperr.Unauthenticated || code == apperr.Forbidden || code == apperr.NotFound
}

// account is a session of the service account, another one than stale. What it fails with says nothing of any
// delegation.
func (s *sessions) account(ctx context.Context, stale account) (account, error) {
	s.own.Lock()
	defer s.own.Unlock()
	if s.own.account != nil && s.own.account != stale {
		return s.own.account, nil
	}
	own, err := s.login(ctx)
	if err != nil {
		return nil, apperr.Wrap(apperr.Unavailable, err, "the service account cannot log in")
	}
	s.own.account = own
	return own, nil
}
