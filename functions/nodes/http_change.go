package nodes

import (
	"context"
	"net/http"
	"regexp"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/auth"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

// changeRoutes declares what admins and agents say of nodes.
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
	httpx.Register(api, huma.Operation{
		OperationID: "reportNode", Method: http.MethodPost, Path: "/v1/nodes/{name}/heartbeat", Tags: tags,
		Middlewares: writes, DefaultStatus: http.StatusNoContent, Summary: "Report how a host is",
		Responses: httpx.Answers(map[int]string{204: "It is recorded.", 403: notMine}),
	}, h.report)
}

func (h handler) delete(ctx context.Context, in *NodePath) (*struct{}, error) {
	who, token := auth.Caller(ctx)
	return nil, h.svc.Delete(ctx, who, token, in.Name)
}

// ReportNode is the body of a heartbeat.
type ReportNode struct {
	Status domain.NodeStatus `json:"status" enum:"up,suspect,down"`
	Reason string            `json:"reason,omitempty" maxLength:"500" doc:"Shown as the reason of its status."`
}

type reportInput struct {
	NodePath
	Body ReportNode
}

// hostName is what a host of at most maxHostName bytes may be called: its first report stores it.
var hostName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

const maxHostName = 255

func (h handler) report(ctx context.Context, in *reportInput) (*struct{}, error) {
	if len(in.Name) > maxHostName || !hostName.MatchString(in.Name) {
		return nil, apperr.InvalidField("name", "must be a host name: letters, digits, '.', '_' and '-'")
	}
	who, token := auth.Caller(ctx)
	return nil, h.svc.Report(ctx, who, token, in.Name, in.Body.Status, in.Body.Reason)
}
