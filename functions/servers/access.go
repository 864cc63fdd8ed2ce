package servers

import (
	"context"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// access is who acts, and how OpenStack is reached for it.
type access struct {
	domain.Access

	cloud session // nil when only run-connections can decrypt the delegation
}

// access resolves who acts: the caller with its own token, or through a connection (zero = none). The region ("" =
// the one of this process) is for the caller's own requests.
func (s service) access(
	ctx context.Context, who domain.Identity, token domain.Secret, connection uuid.UUID, region string,
) (access, error) {
	if connection == uuid.Nil {
		return access{domain.OwnAccess(who), s.session(token, who.ProjectID, region)}, nil
	}
	c, now, err := s.connections.Usable(ctx, who, connection)
	return access{domain.DelegatedAccess(who, c, now), nil}, err
}

// authorize rejects an action that the connection does not permit. With the caller's own token Nova decides.
func (a access) authorize(action domain.Action) error {
	if permission, ok := domain.PermissionFor(action); ok {
		return a.Permits(permission)
	}
	return a.Permits()
}

// notFound is the error for a server that the caller does not have.
func (a access) notFound(id string) error {
	if a.cloud == nil {
		return apperr.New(apperr.NotFound, "the connection has no server and no instance %s", id)
	}
	return apperr.New(apperr.NotFound, "there is no instance %s, and no server of this id is tracked", id)
}

// find returns an instance by its own id or its server's; the zero value when there is no such instance.
func (s service) find(ctx context.Context, a access, id string) (domain.Instance, error) {
	found, err := s.instances.Find(ctx, a.Filter(), []string{id})
	if err != nil {
		return domain.Instance{}, err
	}
	return found[0], nil
}
