package agents

import (
	"context"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cloudfn/cloudfn/shared/agent"
	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

// routes declares what the function serves.
func routes(api huma.API, store postgres.Deployments) {
	h := handler{store}
	tags, deployToken := []string{"agents"}, []map[string][]string{{"deployToken": {}}}
	httpx.Serve[DeploymentPath, struct{}](api, huma.Operation{
		OperationID: "getAgentBundle", Method: http.MethodGet, Path: "/v1/agents/{deployment}/bundle", Tags: tags,
		Security: deployToken, Middlewares: httpx.MapError(hideCause), DefaultStatus: http.StatusOK,
		Summary: "Fetch an agent's bundle",
		Responses: httpx.Answers(map[int]string{
			200: "The bundle, as `openssl enc` encrypts it.",
			404: "Any fault: of the deployment, the token, the time, or the permission.",
		}),
	}, h.bundle)
	httpx.Register(api, huma.Operation{
		OperationID: "agentReady", Method: http.MethodPost, Path: "/v1/agents/{deployment}/ready", Tags: tags,
		Security: deployToken, Middlewares: httpx.MapError(hideCause),
		Summary: "Report that an agent is ready",
		Responses: httpx.Answers(map[int]string{
			204: "The report is stored.",
			404: "Any fault: of the deployment, the token, the time, or the permission; the bundle was not fetched; " +
				"or a second report.",
		}),
	}, h.ready)
}

// hideCause gives the same error for every fault of a request, so that a stranger learns nothing.
func hideCause(err error) error {
	switch apperr.CodeOf(err) {
	case apperr.NotFound, apperr.Invalid:
		return apperr.New(apperr.NotFound,
			"unknown deployment, or its token is used, expired or wrong, or its permission has ended")
	}
	return err
}

type handler struct{ store postgres.Deployments }

// DeploymentPath identifies a deployment.
type DeploymentPath struct {
	ID httpx.ID `path:"deployment" example:"019b7c5e-6e50-7f77-a03e-5c9d4f3b2d44" doc:"The deployment's id."`
}

// bundle does not serve HEAD, which the router sends to it as well: a bundle can be fetched once.
func (h handler) bundle(ctx context.Context, in *DeploymentPath) (httpx.Response, error) {
	r := httpx.RequestOf(ctx)
	if r.Method == http.MethodHead {
		allow := http.Header{"Allow": {http.MethodGet}}
		return httpx.Response{Status: http.StatusMethodNotAllowed, Header: allow, Code: apperr.MethodNotAllowed}, nil
	}
	token, err := agentToken(r)
	if err != nil {
		return httpx.Response{}, err
	}
	bundle, err := h.store.Fetch(ctx, in.ID.UUID, agent.Hash(token))
	return httpx.Response{Status: http.StatusOK, ContentType: "application/octet-stream", Body: bundle}, err
}

func (h handler) ready(ctx context.Context, in *DeploymentPath) (*struct{}, error) {
	token, err := agentToken(httpx.RequestOf(ctx))
	if err != nil {
		return nil, err
	}
	return nil, h.store.Ready(ctx, in.ID.UUID, agent.Hash(token))
}

// maxToken is longer than any token that agent.New creates.
const maxToken = 100

// agentToken reads the token of a request without a body.
func agentToken(r *http.Request) (domain.Secret, error) {
	kind, token, found := strings.Cut(r.Header.Get("Authorization"), " ")
	if r.ContentLength != 0 || !found || !strings.EqualFold(kind, "Bearer") || token == "" || len(token) > maxToken {
		return "", apperr.New(apperr.Invalid, "not a request of an agent")
	}
	return domain.Secret(token), nil
}
