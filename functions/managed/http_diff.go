package managed

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/auth"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

func diffRoute(api huma.API, h handler) {
	httpx.Register(api, huma.Operation{
		OperationID: "diffManaged", Method: http.MethodGet, Path: "/v1/managed/{kind}/{name}/diff", Tags: tags,
		Middlewares: httpx.Before(auth.CanRead), Summary: "Compare revisions of a resource, or one with what is real",
		Responses: httpx.Answers(map[int]string{
			200: "The fields that differ.", 422: unsupported,
			404: "The project has no such resource, or it has no such revision any more.",
		}),
	}, h.diff)
}

type diffInput struct {
	ManagedPath
	From int `query:"from" minimum:"1" example:"1" doc:"A revision. The declared one by default."`
	To   int `query:"to" minimum:"1" example:"2" doc:"A revision. What is real by default."`
}

// ManagedDiff is how two revisions of a resource differ, or a revision and what is real.
type ManagedDiff struct { //nolint:revive // its name in the API
	From  int                 `json:"from" minimum:"1" doc:"The revision that is compared."`
	To    int                 `json:"to,omitempty" minimum:"1" doc:"The other revision. Absent: what is real."`
	Items []ManagedDifference `json:"differences"`
}

// ManagedDifference is a field that differs. A secret's values are not shown.
type ManagedDifference struct { //nolint:revive // its name in the API
	Member uuid.UUID `json:"member,omitzero" doc:"The id of the member that differs."`
	Path   string    `json:"path" minLength:"1"`
	From   any       `json:"from,omitempty" doc:"The value in the revision that is compared, if it has one."`
	To     any       `json:"to,omitempty" doc:"The value in the other revision, or the real one, if there is one."`
}

func (h handler) diff(ctx context.Context, in *diffInput) (*httpx.Value[ManagedDiff], error) {
	kind, err := in.kind()
	if err != nil {
		return nil, err
	}
	from, found, err := h.svc.Diff(ctx, auth.CallerOrNobody(ctx), kind, in.Name, in.From, in.To)
	if err != nil {
		return nil, err
	}
	out := ManagedDiff{From: from, To: in.To, Items: make([]ManagedDifference, len(found))}
	for n, d := range found {
		out.Items[n] = ManagedDifference{Member: d.member, Path: d.path, From: d.from, To: d.to}
	}
	return &httpx.Value[ManagedDiff]{Body: out}, nil
}
