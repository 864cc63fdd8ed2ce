package managed

import (
	"context"
	"strings"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

type sessionKey struct {
	connection uuid.UUID
	trust      string // a connection can get another one
	region     string
}

// opened is a session, or why it could not be opened.
type opened struct {
	session Session
	err     error
}

// openAll opens the session of each resource, and records the connections that Keystone does not accept any more. A
// Keystone that hangs keeps a round for no longer than a list, and not those whose sessions are open.
func (r *round) openAll(ctx context.Context) (err error) {
	opening, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	lost := map[uuid.UUID]*domain.Connection{}
	for _, m := range r.resources {
		if m.session, m.noLogin, err = r.open(ctx, opening, m); err != nil {
			return err
		}
		c := r.known[m.ID]
		if apperr.CodeOf(m.noLogin) == apperr.DelegationLost && c != nil && c.Status.IsOpen() {
			lost[c.ID] = c
		}
	}
	for _, c := range lost {
		r.Sessions.Lose(ctx, *c)
	}
	return nil
}

// open opens the session of a resource's connection. Before a delegation counts as lost, it reads the connections
// again: a declaration renews them at any time, and the old trust is revoked then.
func (r *round) open(ctx, opening context.Context, m *resource) (s Session, noLogin, err error) {
	s, noLogin = r.openOnce(opening, m)
	if apperr.CodeOf(noLogin) != apperr.DelegationLost || r.isReread {
		return s, noLogin, nil
	}
	if r.known, err = r.Store.Connections(ctx, r.project.ProjectID); err != nil {
		return s, nil, err
	}
	r.isReread = true
	s, noLogin = r.openOnce(opening, m)
	return s, noLogin, nil
}

// openOnce opens a trust in a region once in a round.
func (r *round) openOnce(ctx context.Context, m *resource) (Session, error) {
	c := r.known[m.ID]
	switch {
	case c == nil:
		return Session{}, apperr.New(apperr.DelegationLost, "nothing is delegated for the resource: declare it again")
	case !c.Status.IsOpen():
		return Session{}, apperr.New(apperr.DelegationLost, "what was delegated has ended: %s", c.Reason)
	}
	m.ConnectionID = c.ID
	key := sessionKey{c.ID, c.DelegationID, m.Schedule.Region}
	o, ok := r.sessions[key]
	if !ok {
		o.session, o.err = r.Sessions.Open(ctx, *c, m.Schedule.Region)
		if o.err != nil && ctx.Err() != nil {
			o.err = apperr.Wrap(apperr.Timeout, o.err, "keystone did not answer within %s", listTime)
		}
		o.session.lists = &lists{}
		r.sessions[key] = o
	}
	if o.err != nil && apperr.CodeOf(o.err) != apperr.DelegationLost {
		r.problem = o.err
	}
	return o.session, o.err
}

// explain drops the session of a resource after an error that its token may be the reason for, and says with which
// roles a call was forbidden.
func (r *round) explain(m *resource, err error) error {
	code := apperr.CodeOf(err)
	if code == apperr.Unauthenticated || code == apperr.Forbidden {
		r.Sessions.Forget(m.ConnectionID)
	}
	if c := r.known[m.ID]; code == apperr.Forbidden && c != nil {
		err = apperr.Wrap(code, err, "%s: the trust of the resource has only the roles %s",
			strings.TrimSuffix(apperr.As(err).Message, "."), strings.Join(c.ActsAs.Roles, ", "))
	}
	return err
}
