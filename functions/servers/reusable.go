package servers

import (
	"context"
	"net/http"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/auth"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

// change is the body of PATCH /v1/servers/{id}.
type change struct {
	Reusable *bool `json:"reusable"`
}

// changed is a server whose mark was changed.
type changed struct {
	connected
	Reusable bool `json:"reusable"`
}

func (h handler) change(r *http.Request) (changed, error) {
	if _, err := httpx.ReadQuery(r); err != nil {
		return changed{}, err
	}
	id, err := pathID(r)
	if err != nil {
		return changed{}, err
	}
	in, err := httpx.Body[change](r)
	if err != nil {
		return changed{}, err
	}
	if in.Reusable == nil {
		return changed{}, apperr.InvalidField("reusable", "is missing: say whether orders with reuse may take the server", "true", "false")
	}
	who, _, err := auth.Project(r.Context())
	if err != nil {
		return changed{}, err
	}
	i, err := h.svc.MarkReusable(r.Context(), who, id, *in.Reusable)
	if err != nil {
		return changed{}, err
	}
	return changed{connected{ID: i.ID, ServerID: i.ServerID, State: i.State, Origin: i.Origin, ConnectionID: &i.ConnectionID}, *in.Reusable}, nil
}

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
