package servers

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// connectionStore is where connections are looked up.
type connectionStore interface {
	Usable(ctx context.Context, who domain.Identity, id uuid.UUID) (found domain.Connection, now time.Time, err error)
	Now(context.Context) (time.Time, error)
}

// access is who acts, and how OpenStack is reached for it.
type access struct {
	domain.Access

	cloud session // nil when only run-connections can decrypt the delegation
}

// access resolves who acts: the caller with its own token, or through a connection (zero = none).
func (s service) access(ctx context.Context, who domain.Identity, token domain.Secret, connection uuid.UUID) (access, error) {
	if connection == uuid.Nil {
		return access{domain.OwnAccess(who), s.cloud.As(token, who.ProjectID)}, nil
	}
	c, now, err := s.connections.Usable(ctx, who, connection)
	return access{domain.DelegatedAccess(who, c, now), nil}, err
}

// authorize refuses an action that the connection does not permit, and callers who may only read. What Nova is asked
// for it decides itself; it never hears of what only we record.
func (a access) authorize(action domain.Action) error {
	if a.cloud == nil {
		var takes []domain.Permission
		if permission, ok := domain.PermissionFor(action); ok {
			takes = append(takes, permission)
		}
		return a.Permits(takes...)
	}
	isRecorded := slices.Contains([]domain.Action{domain.Connect, domain.Disconnect, domain.Deploy}, action)
	if isRecorded && !a.Identity.MayAct() {
		return apperr.New(apperr.Forbidden, "this takes a role that may do more than read")
	}
	return nil
}

// notFound is that the caller has no such server.
func (a access) notFound(id string) error {
	if a.cloud == nil {
		return apperr.New(apperr.NotFound, "the connection has no server and no instance %s", id)
	}
	return apperr.New(apperr.NotFound, "there is no instance %s, and no server of this id is tracked", id)
}

// find finds one instance by its own id or its server's; the zero value when there is none.
func (s service) find(ctx context.Context, a access, id string) (domain.Instance, error) {
	found, err := s.instances.Find(ctx, a.Filter(), []string{id})
	if err != nil {
		return domain.Instance{}, err
	}
	return found[0], nil
}

// trackedAs is an instance as it is shown with its server.
func trackedAs(i domain.Instance) *domain.Tracked {
	t := &domain.Tracked{ID: i.ID, ServerID: i.ServerID, State: i.State, Origin: i.Origin}
	if i.ConnectionID != uuid.Nil {
		t.ConnectionID = &i.ConnectionID
	}
	return t
}
