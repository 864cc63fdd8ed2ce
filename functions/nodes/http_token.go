package nodes

import (
	"context"
	"net/http"
	"regexp"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/auth"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

// tokenRoutes declares the tokens of nodes' agents, and what those report.
func tokenRoutes(api huma.API, h handler) {
	writes := httpx.Before(auth.CanWrite)
	httpx.Register(api, huma.Operation{
		OperationID: "createNodeToken", Method: http.MethodPost, Path: "/v1/nodes/{name}/token", Tags: tags,
		Middlewares: writes, DefaultStatus: http.StatusCreated, Summary: "Make the token of a host's agent",
		Responses: httpx.Answers(map[int]string{201: "The token. It is never shown again.", 403: notMine}),
	}, h.createToken)
	httpx.Register(api, huma.Operation{
		OperationID: "revokeNodeToken", Method: http.MethodDelete, Path: "/v1/nodes/{name}/token", Tags: tags,
		Middlewares: writes, DefaultStatus: http.StatusNoContent, Summary: "Revoke the token of a host's agent",
		Responses: httpx.Answers(map[int]string{
			204: "The agent can report no more.", 403: notMine, 404: "The host has no token.",
		}),
	}, h.revokeToken)
	httpx.Register(api, huma.Operation{
		OperationID: "reportNode", Method: http.MethodPost, Path: "/v1/nodes/{name}/heartbeat", Tags: tags,
		Security: []map[string][]string{{"nodeToken": {}}}, DefaultStatus: http.StatusNoContent,
		Summary: "Report how a host is",
		Responses: httpx.Answers(map[int]string{
			204: "It is recorded.", 400: "", 401: "No host has the token.", 403: "The token is that of another host.",
		}),
	}, h.report)
}

// NodeToken is the one answer that shows a token.
type NodeToken struct {
	Token string `json:"token" minLength:"1" doc:"For the agent's header Authorization: Bearer."`
}

// hostName is what a host of at most maxHostName bytes may be called: its token stores it.
var hostName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

const (
	maxHostName = 255
	maxToken    = 100 // longer than any token
)

func (h handler) createToken(ctx context.Context, in *NodePath) (*httpx.Value[NodeToken], error) {
	if len(in.Name) > maxHostName || !hostName.MatchString(in.Name) {
		return nil, apperr.InvalidField("name", "must be a host name: letters, digits, '.', '_' and '-'")
	}
	who, token := auth.Caller(ctx)
	made, err := h.svc.CreateToken(ctx, who, token, in.Name)
	return &httpx.Value[NodeToken]{Body: NodeToken{Token: made.Reveal()}}, err
}

func (h handler) revokeToken(ctx context.Context, in *NodePath) (*struct{}, error) {
	who, token := auth.Caller(ctx)
	return nil, h.svc.RevokeToken(ctx, who, token, in.Name)
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

func (h handler) report(ctx context.Context, in *reportInput) (*struct{}, error) {
	kind, token, _ := strings.Cut(httpx.RequestOf(ctx).Header.Get("Authorization"), " ")
	if !strings.EqualFold(kind, "Bearer") || token == "" || len(token) > maxToken {
		return nil, apperr.New(apperr.Unauthenticated, "the header Authorization must be Bearer and the node's token")
	}
	return nil, h.svc.Report(ctx, in.Name, domain.Secret(token), in.Body.Status, in.Body.Reason)
}
