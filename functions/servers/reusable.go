package servers

import (
	"context"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// MarkReusable says whether orders with reuse may take a server of the caller's project. Whoever may only act through the connection
// that manages it is of another project, or finds the server there like its owner does.
func (s service) MarkReusable(ctx context.Context, who domain.Identity, id string, reusable bool) (domain.Instance, error) {
	if err := mayAct(who); err != nil {
		return domain.Instance{}, err
	}
	marked, found, err := s.instances.MarkReusable(ctx, who.ProjectID, id, reusable)
	if err != nil || found {
		return marked, err
	}
	targets, err := s.targets(ctx, who, []string{id})
	if err != nil {
		return marked, err
	}
	if t := targets[0].tracked; t != nil && t.ConnectionID == nil {
		return marked, apperr.New(apperr.Conflict, "the server %s is not managed through a connection: only orders through one take idle servers", id)
	}
	return marked, apperr.New(apperr.NotFound, "the project has no server %s that is managed through a connection", id)
}
