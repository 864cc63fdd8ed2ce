package runconnections

import (
	"context"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// renewEvery is the least time between two questions to Keystone about one connection.
const renewEvery = 3 * time.Second

// use calls do with a session of the connection. When a service does not accept it, or is not available, Keystone is
// asked whether it still accepts the delegation: Nova answers 503 to a token of which Keystone says 403. What a new
// session is refused, too, is Forbidden.
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
	return apperr.Wrap(apperr.Forbidden, err, "the cloud accepts the delegation, but not for this call: the access rules of the credential may not allow it")
}

// mayBeLost says whether an error may come of a delegation that is lost.
func mayBeLost(err error) bool {
	switch apperr.CodeOf(err) {
	case apperr.Unauthenticated, apperr.Forbidden, apperr.Unavailable:
		return true
	}
	return false
}

// renew opens the connection's session anew, unless somebody else has since stale was. Of one connection Keystone is
// asked once in renewEvery; before that it is waited for, or stale is all that there is.
func (s *sessions) renew(ctx context.Context, c domain.Connection, stale session, wait bool) (session, error) {
	e := s.entry(c.ID)
	e.Lock()
	left, isStale := renewEvery-time.Since(e.opened), e.session == stale
	e.Unlock()
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
