package delegation

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/golang-lru/v2/expirable"
	"golang.org/x/sync/semaphore"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/flow"
)

const (
	// LoginTimeout bounds each login, with the check of its rejection.
	LoginTimeout = 20 * time.Second
	// ConfirmPause is before the second try of a delegation that Keystone rejects.
	ConfirmPause = 5 * time.Second
	// renewEvery is the least time between two checks of one connection with Keystone.
	renewEvery   = 3 * time.Second
	keptSessions = 1000
)

// LostError means that Keystone no longer accepts a delegation, and that the delegation itself is the reason.
type LostError struct {
	cause error
	// IsAbsent is set when Keystone does not have the trust; otherwise its user is disabled or lacks a role.
	IsAbsent bool
}

func (e *LostError) Error() string { return "the delegation is lost: " + e.cause.Error() }
func (e *LostError) Unwrap() error { return e.cause }

// IsLost reports whether an error is a LostError.
func IsLost(err error) bool {
	_, ok := errors.AsType[*LostError](err)
	return ok
}

// UnopenedError means that no session could be opened, so the work was not tried or its result is unknown.
type UnopenedError struct{ Cause error }

func (e UnopenedError) Error() string { return "no session: " + e.Cause.Error() }
func (e UnopenedError) Unwrap() error { return e.Cause }

// Account is a session of the service account, to which trusts are made. S is a session of a trust.
type Account[S any] interface {
	WithTrust(ctx context.Context, trust string) (S, error)
	CheckTrust(ctx context.Context, id string) error
	FindTrusts(ctx context.Context, trustor, projectID string, end time.Time) (ids []string, err error)
}

// trusted is a session in the name of the user who delegated.
type trusted interface {
	comparable
	DeleteTrust(ctx context.Context, id string) error
}

// Sessions caches sessions by connection, from one event to the next: a login costs Keystone more than most calls cost
// Nova. The functions are set before its first use; only Login is required.
type Sessions[S trusted] struct {
	Login func(context.Context) (Account[S], error)
	// Credential opens a session with the connection's application credential.
	Credential func(context.Context, domain.Connection) (S, error)
	// Current reads a connection as it is now: it may have been given another trust or secret since it was listed.
	Current func(ctx context.Context, projectID string, id uuid.UUID) (domain.Connection, error)
	// Now is the database's clock.
	Now func(context.Context) (time.Time, error)
	// Accepted is called after each login with the time before it.
	Accepted func(ctx context.Context, c domain.Connection, in S, before time.Time)
	// First is called with the first session of a connection, and again for each other trust or secret.
	First func(ctx context.Context, c domain.Connection, in S)
	Pause time.Duration // between two rejections that end a delegation

	own    flow.Shared[Account[S]]
	adding sync.Mutex
	kept   *expirable.LRU[uuid.UUID, *entry[S]]
}

// NewSessions returns a cache of sessions that are forgotten after some time.
func NewSessions[S trusted](login func(context.Context) (Account[S], error), ttl time.Duration) *Sessions[S] {
	return &Sessions[S]{
		Login: login, Pause: ConfirmPause, kept: expirable.NewLRU[uuid.UUID, *entry[S]](keptSessions, nil, ttl),
		Current: func(_ context.Context, _ string, id uuid.UUID) (domain.Connection, error) {
			return domain.Connection{ID: id}, nil
		},
		Now:      func(context.Context) (time.Time, error) { return time.Time{}, nil },
		Accepted: func(context.Context, domain.Connection, S, time.Time) {},
		First:    func(context.Context, domain.Connection, S) {},
	}
}

// entry is what is known of one connection.
type entry[S comparable] struct {
	ready atomic.Pointer[ready[S]] // what Open returns without a lock; nil = none

	lock       *semaphore.Weighted // of one, for all below: while one logs in the others wait, unless one is ready
	connection domain.Connection   // as it was last read: of its newest generation
	session    S
	opened     time.Time // when a login was last tried
	isKnown    bool      // First was called
	lost       error     // once it is set there are no more logins
}

// ready is an open session, and its generation of the connection.
type ready[S comparable] struct {
	session    S
	generation int
}

func (s *Sessions[S]) entry(id uuid.UUID) *entry[S] {
	s.adding.Lock()
	defer s.adding.Unlock()
	e, ok := s.kept.Get(id)
	if !ok {
		e = &entry[S]{lock: semaphore.NewWeighted(1)}
		s.kept.Add(id, e)
	}
	return e
}

// update gives the entry the connection's newest state. A session of another trust or secret is not used again.
func (e *entry[S]) update(c domain.Connection) {
	switch {
	case c.Generation > e.connection.Generation:
		var none S
		e.session, e.isKnown, e.lost = none, false, nil
	case c.Generation < e.connection.Generation:
		return // it was read before it was changed
	}
	e.connection = c
}

func (e *entry[S]) isOpen() bool {
	var none S
	return e.session != none && e.lost == nil
}

// publish has Open return the session without the lock, if it may be used.
func (e *entry[S]) publish() {
	if !e.isOpen() || !e.isKnown {
		e.ready.Store(nil)
		return
	}
	e.ready.Store(&ready[S]{e.session, e.connection.Generation})
}

// Open returns a session of the connection, another one than stale. The error is a LostError when Keystone does not
// accept the delegation any more.
func (s *Sessions[S]) Open(ctx context.Context, c domain.Connection, stale S) (in S, err error) {
	e := s.entry(c.ID)
	if r := e.ready.Load(); r != nil && r.session != stale && c.Generation <= r.generation {
		return r.session, nil
	}
	if err := e.lock.Acquire(ctx, 1); err != nil {
		return in, err
	}
	defer e.lock.Release(1)
	e.update(c)
	defer e.publish()
	if !e.isOpen() || e.session == stale {
		if err := s.reopen(ctx, e); err != nil {
			return in, err
		}
	}
	if !e.isKnown {
		e.isKnown = true
		ctx, cancel := context.WithTimeout(ctx, LoginTimeout)
		defer cancel()
		s.First(ctx, c, e.session)
	}
	return e.session, nil
}

// Check logs in to find out whether Keystone still accepts the delegation. The new session is kept.
func (s *Sessions[S]) Check(ctx context.Context, c domain.Connection) error {
	e := s.entry(c.ID)
	if err := e.lock.Acquire(ctx, 1); err != nil {
		return err
	}
	defer e.lock.Release(1)
	e.update(c)
	defer e.publish()
	return s.reopen(ctx, e)
}

// Use calls do with a session of the connection. When a service rejects it or is not available, Use checks with
// Keystone whether the delegation is still valid: Nova answers 503 to a token that Keystone answers with 403. If a new
// session is rejected, too, the error is Forbidden. It is an UnopenedError without a session.
func (s *Sessions[S]) Use(ctx context.Context, c domain.Connection, do func(S) error) error {
	var none S
	in, err := s.Open(ctx, c, none)
	if err != nil {
		return UnopenedError{err}
	}
	rejection := do(in)
	if !MayBeLost(rejection) {
		return rejection
	}
	renewed, err := s.renew(ctx, c, in, apperr.CodeOf(rejection) != apperr.Unavailable)
	switch {
	case err != nil:
		return UnopenedError{err}
	case renewed == in || apperr.CodeOf(rejection) != apperr.Unauthenticated:
		return rejection
	}
	if err = do(renewed); apperr.CodeOf(err) != apperr.Unauthenticated {
		return err
	}
	return apperr.Wrap(apperr.Forbidden, err,
		"the cloud accepts the delegation, but not for this call: the access rules of the credential may not allow it")
}

// MayBeLost reports whether a lost delegation may be the cause of an error.
func MayBeLost(err error) bool {
	switch apperr.CodeOf(err) {
	case apperr.Unauthenticated, apperr.Forbidden, apperr.Unavailable:
		return true
	}
	return false
}

// renew opens another session of the connection, unless another caller has already replaced stale. For one connection
// that happens once in renewEvery at most. Before that renew waits, or returns stale if wait is false.
func (s *Sessions[S]) renew(ctx context.Context, c domain.Connection, stale S, wait bool) (S, error) {
	e := s.entry(c.ID)
	if err := e.lock.Acquire(ctx, 1); err != nil {
		return stale, nil //nolint:nilerr // as below when the time is up
	}
	left, isStale := renewEvery-time.Since(e.opened), e.session == stale
	e.lock.Release(1)
	if isStale && left > 0 && (!wait || !flow.Sleep(ctx, left)) {
		return stale, nil
	}
	return s.Open(ctx, c, stale)
}

// Forget drops the session of a connection.
func (s *Sessions[S]) Forget(id uuid.UUID) { s.kept.Remove(id) }

// reopen opens the session of an entry that the caller has locked. If the delegation is rejected, it reads the
// connection again: a trust is deleted soon after another one has replaced it.
func (s *Sessions[S]) reopen(ctx context.Context, e *entry[S]) error {
	if e.lost != nil {
		return e.lost
	}
	before, noTime := s.Now(ctx)
	e.opened = time.Now()
	in, err := s.open(ctx, e.connection)
	if IsLost(err) {
		in, err = s.openNewer(ctx, e, err)
	}
	if IsLost(err) {
		in, err = s.confirmLost(ctx, e.connection, err)
	}
	if IsLost(err) {
		e.lost = err
	}
	if err != nil {
		return err
	}
	e.session = in
	if noTime != nil { // so nothing can be recorded either
		slog.WarnContext(ctx, "connection not updated", "connection_id", e.connection.ID, "error", noTime)
		return nil
	}
	s.Accepted(ctx, e.connection, in, before)
	return nil
}

// openNewer opens a session with the connection's newer trust or secret. Without one the rejection stands.
func (s *Sessions[S]) openNewer(ctx context.Context, e *entry[S], rejection error) (in S, err error) {
	now, err := s.Current(ctx, e.connection.ProjectID, e.connection.ID)
	switch {
	case apperr.CodeOf(err) == apperr.NotFound:
		return in, rejection
	case err != nil:
		return in, err // the delegation is not the reason
	case now.Generation <= e.connection.Generation || !now.Status.IsOpen():
		return in, rejection
	}
	e.update(now)
	return s.open(ctx, now)
}

// confirmLost tries once more after a pause: a Keystone that is just starting, or a replica of its database that lags
// behind, rejects valid delegations. A lost delegation is never used again, so one rejection must not end it.
func (s *Sessions[S]) confirmLost(ctx context.Context, c domain.Connection, rejection error) (in S, err error) {
	slog.WarnContext(ctx, "Keystone rejected a delegation; trying once more", "connection_id", c.ID,
		"project_id", c.ProjectID, "error", rejection)
	if !flow.Sleep(ctx, s.Pause) {
		return in, ctx.Err()
	}
	return s.open(ctx, c)
}

func (s *Sessions[S]) open(ctx context.Context, c domain.Connection) (in S, err error) {
	ctx, cancel := context.WithTimeout(ctx, LoginTimeout)
	defer cancel()
	if c.Kind == domain.TrustConnection {
		return s.openTrust(ctx, c.DelegationID)
	}
	if in, err = s.Credential(ctx, c); isRejected(err) {
		err = &LostError{cause: err}
	}
	return in, err
}

// openTrust distinguishes an invalid trust from an invalid service account: the account logs in again, and reads the
// trust as its trustee.
func (s *Sessions[S]) openTrust(ctx context.Context, trust string) (in S, err error) {
	own, err := s.account(ctx, nil)
	if err != nil {
		return in, err
	}
	if in, err = own.WithTrust(ctx, trust); !isRejected(err) {
		return in, err
	}
	if own, err = s.account(ctx, own); err != nil {
		return in, err
	}
	if in, err = own.WithTrust(ctx, trust); !isRejected(err) {
		return in, err
	}
	isAbsent, known := checkTrust(ctx, own, trust)
	if known != nil {
		return in, known
	}
	return in, &LostError{cause: err, IsAbsent: isAbsent}
}

// checkTrust reports whether Keystone does not have a trust. An error says nothing about the trust.
func checkTrust[S any](ctx context.Context, own Account[S], trust string) (isAbsent bool, err error) {
	switch err = own.CheckTrust(ctx, trust); apperr.CodeOf(err) {
	case apperr.NotFound:
		return true, nil
	case apperr.Forbidden:
		err = apperr.Wrap(apperr.Internal, err,
			"the service account is not the trustee, or does not log in with a password")
	}
	return false, err
}

// isRejected reports whether Keystone has rejected a login, rather than failed.
func isRejected(err error) bool {
	code := apperr.CodeOf(err)
	return code == apperr.Unauthenticated || code == apperr.Forbidden || code == apperr.NotFound
}

// account is a session of the service account, another one than stale. Its errors are never the fault of a delegation.
func (s *Sessions[S]) account(ctx context.Context, stale Account[S]) (Account[S], error) {
	return s.own.Get(ctx, stale, func(ctx context.Context) (Account[S], error) {
		own, err := s.Login(ctx)
		if err != nil {
			return nil, apperr.Wrap(apperr.Unavailable, err, "the service account cannot log in")
		}
		return own, nil
	})
}

// FindTrusts looks for a trust by its end, when its id is not known.
func (s *Sessions[S]) FindTrusts(ctx context.Context, t domain.OldTrust) (ids []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, LoginTimeout)
	defer cancel()
	own, err := s.account(ctx, nil)
	if err != nil {
		return nil, err
	}
	ids, err = own.FindTrusts(ctx, t.UserID, t.ProjectID, t.ExpiresAt)
	if !isRejected(err) {
		return ids, err
	}
	if own, err = s.account(ctx, own); err != nil { // the account's token has expired
		return nil, err
	}
	return own.FindTrusts(ctx, t.UserID, t.ProjectID, t.ExpiresAt)
}

// Revoke deletes a trust in Keystone. nil means that Keystone no longer has it; a LostError that no one can delete it
// now. Only its user can, also by a token of the trust. For that the user must be enabled and have the role.
func (s *Sessions[S]) Revoke(ctx context.Context, trust string) error {
	ctx, cancel := context.WithTimeout(ctx, LoginTimeout)
	defer cancel()
	own, err := s.account(ctx, nil)
	if err != nil {
		return err
	}
	isAbsent, err := checkTrust(ctx, own, trust)
	if apperr.CodeOf(err) == apperr.Unauthenticated { // the account's token has expired
		if own, err = s.account(ctx, own); err != nil {
			return err
		}
		isAbsent, err = checkTrust(ctx, own, trust)
	}
	if err != nil || isAbsent {
		return err
	}
	in, err := own.WithTrust(ctx, trust)
	if err == nil {
		err = in.DeleteTrust(ctx, trust)
	}
	if isRejected(err) {
		err = &LostError{cause: err}
	}
	return err
}
