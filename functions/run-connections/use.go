package runconnections

import (
	"context"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// renewEvery is the least time between two checks of one connection with Keystone.
const renewEvery = 3 * time.Second

// use calls do with a session of the connection. When a service rejects it or is not available, use checks with
// Keystone whether the delegation is still valid: Nova answers 503 to a token that Keystone answers with 403. If a new
// session is rejected, too, the error is Forbidden.
func (s *sessions) use(ctx context.Context, c domain.Connection, do func(session) error) error {
	in, err := s.in(ctx, c, nil)
	if err != nil {
		return unopenedError{err}
	}
	refusal := do(in)
	if !mayBeLost(refusal) {
		return refusal
	}
	renewed, err := s.renew(ctx, c, in, apperr.CodeOf(refusal) != apperr.Unavailable)
	switch {
	case err != nil:
		return unopenedError{err}
	case renewed == in || apperr.CodeOf(refusal) != apperr.Unauthenticated:
		return refusal
	}
	if err = do(renewed); apperr.CodeOf(err) != apperr.Unauthenticated {
		return err
	}
	return apperr.Wrap(apperr.Forbidden, err,
		"the cloud accepts the delegation, but not for this call: the access rules of the credential may not allow it")
}

// mayBeLost reports whether a lost delegation may be the cause of an error.
func mayBeLost(err error) bool {
	switch apperr.CodeOf(err) {
	case apperr.Unauthenticated, apperr.Forbidden, apperr.Unavailable:
		return true
	}
	return false
}

// renew opens the connection's session anew, unless somebody else has already replaced stale. For one connection that
// happens once in renewEvery at most. Before that renew waits, or returns stale if wait is false.
func (s *sessions) renew(ctx context.Context, c domain.Connection, stale session, wait bool) (session, error) {
	e := s.entry(c.ID)
	if err := e.lock.Acquire(ctx, 1); err != nil {
		return stale, nil //nolint:nilerr // as below when the time is up
	}
	left, isStale := renewEvery-time.Since(e.opened), e.session == stale
	e.lock.Release(1)
	if isStale && left > 0 {
		if !wait {
			return stale, nil
		}
		select {
		case <-time.After(left):
		case <-ctx.Done():
			return stale, nil
		}
	}
	return s.in(ctx, c, stale)
}
