package pollinstances

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
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
// to Nova. A session that expired, or whose role was taken away, is opened once more.
type sessions struct {
	login func(context.Context) (session, error)

	mu   sync.Mutex
	own  session            // of the account's own scope; nil before the first login
	kept map[string]session // by project
}

// errLogin says that the service account cannot log in: that says nothing of any project.
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
	s.mu.Lock()
	in, ok := s.kept[projectID]
	s.mu.Unlock()
	if ok {
		return in, nil
	}
	own, err := s.account(ctx, nil)
	if err != nil {
		return nil, err
	}
	in, err = own.In(ctx, projectID)
	if apperr.CodeOf(err) == apperr.Unauthenticated { // no role there, or its own token is over
		if own, err = s.account(ctx, own); err != nil {
			return nil, err
		}
		in, err = own.In(ctx, projectID)
	}
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept[projectID] = in
	return in, nil
}

// account is the session of the account's own scope, another one than stale.
func (s *sessions) account(ctx context.Context, stale session) (session, error) {
	s.mu.Lock() // the others would only log in, too
	defer s.mu.Unlock()
	if s.own != nil && s.own != stale {
		return s.own, nil
	}
	own, err := s.login(ctx)
	if err != nil {
		return nil, errors.Join(errLogin, err)
	}
	s.own = own
	return own, nil
}

func (s *sessions) forget(projectID string, stale session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if projectID == "" && s.own == stale {
		s.own = nil
	}
	if s.kept[projectID] == stale {
		delete(s.kept, projectID)
	}
}
