package nodes

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cloudfn/cloudfn/shared/auth"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

// changeRoutes declares what admins set of nodes, and how they delete one.
func changeRoutes(api huma.API, h handler) {
	writes := httpx.Before(auth.CanWrite)
	httpx.Register(api, huma.Operation{
		OperationID: "changeNode", Method: http.MethodPatch, Path: "/v1/nodes/{name}", Tags: tags, Middlewares: writes,
		Summary: "Change what is set of a host",
		Responses: httpx.Answers(map[int]string{
			200: "The host as it is now.", 403: notMine, 404: notFound, 409: "Others change the host at the same time.",
			412: "",
		}),
	}, h.change)
	httpx.Register(api, huma.Operation{
		OperationID: "deleteNode", Method: http.MethodDelete, Path: "/v1/nodes/{name}", Tags: tags, Middlewares: writes,
		DefaultStatus: http.StatusNoContent, Summary: "Delete a host that is down and empty",
		Responses: httpx.Answers(map[int]string{
			204: "Nova has the host no more, and nothing is stored of it.",
			403: notMine,
			404: notFound,
			409: "The host is up, has servers, is drained, or is reservable.",
		}),
	}, h.delete)
}

func (h handler) delete(ctx context.Context, in *NodePath) (*struct{}, error) {
	who, token := auth.Caller(ctx)
	return nil, h.svc.Delete(ctx, who, token, in.Name)
}
