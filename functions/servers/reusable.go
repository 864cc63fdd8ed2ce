package servers

import (
	"context"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// MarkReusable says whether orders with reuse may take a server of the caller's project. Whoever may only act through
// the connection that manages it is of another project, or finds the server there like its owner does.
func (s service) MarkReusable(ctx context.Context, a access, id string, reusable bool) (domain.Instance, error) {
	if err := a.authorize(domain.Connect); err != nil {
		return domain.Instance{}, err
	}
	marked, found, err := s.instances.MarkReusable(ctx, a.ProjectID, id, reusable)
	if err != nil || found {
		return marked, err
	}
	i, err := s.find(ctx, a, id)
	if err != nil {
		return marked, err
	}
	if i.ID != uuid.Nil && i.ConnectionID == uuid.Nil {
		return marked, apperr.New(apperr.Conflict,
			"the server %s is not managed through a connection: only orders through one take idle servers", id)
	}
	return marked, apperr.New(apperr.NotFound, "the project has no server %s that is managed through a connection", id)
}
