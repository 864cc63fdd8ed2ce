package pollinstances

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/golang-lru/v2/expirable"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/flow"
	"github.com/cloudfn/cloudfn/shared/orders"
)

// session is the part of OpenStack that this function needs, as the service account.
type session interface {
	orders.Cloud
	In(ctx context.Context, projectID string) (session, error)
	ChangedServers(ctx context.Context, projectID string, since time.Time, marker string) (page []domain.Server,
		next string, err error)
	AllServers(ctx context.Context, projectID, marker string) (page []domain.Server, next string, err error)
	CellsUp(ctx context.Context, projectID string) error
	Actions(ctx context.Context, serverID string) ([]domain.LoggedAction, error)
	CheckProject(ctx context.Context, id string) error
}

// sessions keeps the service account's sessions from one event to the next: a login costs Keystone more than all calls
// to Nova. A session that expired, or whose role was revoked, is opened once more.
type sessions struct {
	login func(context.Context) (session, error)

	own  flow.Shared[session]            // of the account's own scope
	kept *expirable.LRU[string, session] // by project
}

const (
	keptSessions = 10_000 // each entry of a project that is read separately takes a login
	sessionTTL   = time.Hour
)

func newSessions(login func(context.Context) (session, error)) *sessions {
	return &sessions{login: login, kept: expirable.NewLRU[string, session](keptSessions, nil, sessionTTL)}
}

// errLogin means that the service account cannot log in: that says nothing of any project.
var errLogin = errors.New("the service account cannot log in")

// use calls do with a session in the project, or with the account's own for projectID "". do may be called twice.
func (s *sessions) use(ctx context.Context, projectID string, do func(session) error) error {
	in, err := s.in(ctx, projectID)
	if err != nil {
		return err
	}
	err = do(in)
	if apperr.CodeOf(err) != apperr.Unauthenticated {
		return err
	}
	s.forget(projectID, in)
	if in, err = s.in(ctx, projectID); err != nil {
		return err
	}
	return do(in)
}

func (s *sessions) in(ctx context.Context, projectID string) (session, error) {
	if projectID == "" {
		return s.account(ctx, nil)
	}
	if in, ok := s.kept.Get(projectID); ok {
		return in, nil
	}
	own, err := s.account(ctx, nil)
	if err != nil {
		return nil, err
	}
	in, err := own.In(ctx, projectID)
	if apperr.CodeOf(err) == apperr.Unauthenticated { // no role there, or its own token has expired
		if own, err = s.account(ctx, own); err != nil {
			return nil, err
		}
		in, err = own.In(ctx, projectID)
	}
	if err != nil {
		return nil, err
	}
	s.kept.Add(projectID, in)
	return in, nil
}

// account is the session of the account's own scope, another one than stale.
func (s *sessions) account(ctx context.Context, stale session) (session, error) {
	return s.own.Get(ctx, stale, func(ctx context.Context) (session, error) {
		own, err := s.login(ctx)
		if err != nil {
			return nil, errors.Join(errLogin, err)
		}
		return own, nil
	})
}

func (s *sessions) forget(projectID string, stale session) {
	if projectID == "" {
		s.own.Forget(stale)
	} else if in, ok := s.kept.Peek(projectID); ok && in == stale {
		s.kept.Remove(projectID)
	}
}
