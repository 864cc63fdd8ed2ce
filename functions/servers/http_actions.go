package servers

import (
	"context"
	"net/http"
	"slices"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

func actionRoutes(api huma.API, h handler) {
	one := operation("POST /v1/servers/{id}/actions", "actOnServer",
		"Do an action to a server", answers{
			202: "Nova does it, or it will be done through the connection.",
			403: notPermitted, 404: noServer, 409: "",
			501: "The cloud is older than Nova's 2.57 (2.93 for a server that boots from a volume), or `AGENT_URL` " +
				"is not set.",
		})
	one.DefaultStatus = http.StatusAccepted
	one.Responses["200"] = answer[ServerActed](api,
		"There was nothing to do, or the action of this `id` was done before.")
	httpx.Register(api, httpx.Idempotent(one), h.act)
	many := operation("POST /v1/servers/actions", "actOnServers", "Do an action to many servers", answers{
		202: "Nova does it to at least one server.", 403: notPermitted, 404: "The caller may not use the connection.",
	})
	many.DefaultStatus = http.StatusAccepted
	many.Responses["200"] = answer[ServersActed](api, "No server was changed.")
	httpx.Register(api, httpx.Idempotent(many), h.actOnMany)
	httpx.Register(api, operation("GET /v1/servers/actions/{action}", "getServerAction",
		"Show an action through a connection", answers{
			200: "The action.", 404: "The connection has no such action, or the caller may not use the connection.",
		}), h.action)
}

type actedOutput struct {
	Status int
	Body   ServerActed
}

func (h handler) act(ctx context.Context, in *actInput) (*actedOutput, error) {
	if id, isKeyed, _ := domain.AttemptFrom(ctx); isKeyed && in.Body.ID == nil {
		in.Body.ID = &httpx.ID{UUID: id}
	}
	req := in.Body.request()
	if req.deploy != nil && h.svc.agents.config.URL == "" {
		return nil, apperr.New(apperr.Unsupported, "agents cannot be deployed here: the operator has not set AGENT_URL")
	}
	a, err := h.access(ctx, in.Body.ConnectionID.OrNil(), "")
	if err != nil {
		return nil, err
	}
	done, err := h.svc.Do(ctx, a, req, []string{in.ID.String()})
	if err != nil {
		return nil, err
	}
	return &actedOutput{accepted(done[0].Changed && !done[0].isRepeated), showActed(done[0])}, done[0].err
}

type manyActedOutput struct {
	Status int
	Body   ServersActed
}

func (h handler) actOnMany(ctx context.Context, in *actOnManyInput) (*manyActedOutput, error) {
	req := newActionRequest(domain.Action(in.Body.Action), in.Body.Hard, in.Body.Force)
	req.imageName = orZero(in.Body.Name)
	if id, isKeyed, _ := domain.AttemptFrom(ctx); isKeyed {
		req.key = key{id: id, isOfMany: true}
	}
	a, err := h.access(ctx, in.Body.ConnectionID.OrNil(), "")
	if err != nil {
		return nil, err
	}
	ids := make([]string, len(in.Body.IDs))
	for n, id := range in.Body.IDs {
		ids[n] = id.String()
	}
	done, err := h.svc.Do(ctx, a, req, ids)
	if err != nil {
		return nil, err
	}
	out := ServersActed{Results: make([]ServerResult, len(done))}
	for n, o := range done {
		if o.err == nil {
			out.Results[n] = ServerResult{showActed(o)}
			continue
		}
		// The request as a whole did not fail, so nobody else logs it.
		out.Results[n] = ServerResult{showNotActed(o, httpx.LogFailure(ctx, "servers", o.err))}
	}
	isChanged := slices.ContainsFunc(done, func(o outcome) bool { return o.Changed })
	return &manyActedOutput{accepted(isChanged), out}, nil
}

func accepted(isChanged bool) int {
	if isChanged {
		return http.StatusAccepted
	}
	return http.StatusOK
}

func (h handler) action(ctx context.Context, in *actionInput) (*httpx.Value[DelegatedAction], error) {
	a, err := h.access(ctx, in.ConnectionID.UUID, "")
	if err != nil {
		return nil, err
	}
	found, err := h.svc.actions.Get(ctx, a.Filter(), in.Action.UUID)
	return &httpx.Value[DelegatedAction]{Body: DelegatedAction{
		ID: found.ID, Action: found.Request.Action, InstanceID: found.InstanceID, ConnectionID: found.ConnectionID,
		Status: found.Status, ImageID: found.ImageID, Error: found.Problem,
		CreatedAt: found.CreatedAt, UpdatedAt: found.UpdatedAt,
	}}, err
}
