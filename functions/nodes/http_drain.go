package nodes

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/auth"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

// drainRoutes declares how a node is taken out for maintenance, and given back.
func drainRoutes(api huma.API, h handler) {
	writes := httpx.Before(auth.CanWrite)
	httpx.Register(api, huma.Operation{
		OperationID: "cordonNode", Method: http.MethodPost, Path: "/v1/nodes/{name}/cordon", Tags: tags,
		Middlewares: writes, DefaultStatus: http.StatusOK, Summary: "Keep new servers off a host",
		Responses: httpx.Answers(map[int]string{
			200: "The host is cordoned.",
			403: notMine,
			404: notFound,
			409: "Another admin has disabled the host, it is the last ordinary or the last reservable one of its " +
				"zone that takes servers, or Nova has it no more.",
		}),
	}, h.cordon)
	httpx.Register(api, huma.Operation{
		OperationID: "uncordonNode", Method: http.MethodPost, Path: "/v1/nodes/{name}/uncordon", Tags: tags,
		Middlewares: writes, DefaultStatus: http.StatusOK, Summary: "Let servers onto a cordoned host again",
		Responses: httpx.Answers(map[int]string{
			200: "The host takes servers.",
			403: notMine,
			404: notFound,
			409: "Somebody else has disabled the host, or it is drained.",
		}),
	}, h.uncordon)
	httpx.Serve[drainInput, nodeOutput](api, huma.Operation{
		OperationID: "drainNode", Method: http.MethodPost, Path: "/v1/nodes/{name}/drain", Tags: tags,
		Middlewares: writes, DefaultStatus: http.StatusAccepted, Summary: "Move the servers off a host",
		Responses: httpx.Answers(map[int]string{
			200: "With `dry_run=true`: what would be done with each server. Nothing changes.",
			202: "The host is cordoned, and its servers are about to move.",
			403: notMine,
			404: notFound,
			409: "The host is down, is the last ordinary or the last reservable one of its zone that takes " +
				"servers, or a cancelled drain of it is not over yet.",
		}),
	}, h.drain)
	httpx.Register(api, huma.Operation{
		OperationID: "cancelDrain", Method: http.MethodPost, Path: "/v1/nodes/{name}/cancel-drain", Tags: tags,
		Middlewares: writes, DefaultStatus: http.StatusAccepted, Summary: "Stop a drain",
		Responses: httpx.Answers(map[int]string{
			202: "No other server begins to move. The host stays cordoned.",
			403: notMine,
			404: notFound,
		}),
	}, h.cancelDrain)
}

// CordonNode is the body of a cordon.
type CordonNode struct {
	Reason string `json:"reason,omitempty" maxLength:"200" example:"a disk fails" doc:"Nova shows it with the host."`
	Force  bool   `json:"force,omitempty" doc:"Also the last ordinary or reservable host of its zone."`
}

// Resolve implements huma.Resolver.
func (c *CordonNode) Resolve(huma.Context) (faults []error) {
	if err := domain.CheckStorable("reason", c.Reason); err != nil {
		faults = append(faults, err)
	}
	return faults
}

type cordonInput struct {
	NodePath
	Body *CordonNode
}

func (h handler) cordon(ctx context.Context, in *cordonInput) (*nodeOutput, error) {
	who, token := auth.Caller(ctx)
	body := CordonNode{}
	if in.Body != nil {
		body = *in.Body
	}
	return reply(h.svc.Cordon(ctx, who, token, in.Name, body.Reason, body.Force))
}

func (h handler) uncordon(ctx context.Context, in *NodePath) (*nodeOutput, error) {
	who, token := auth.Caller(ctx)
	return reply(h.svc.Uncordon(ctx, who, token, in.Name))
}

// DrainNode is the body of a drain.
type DrainNode struct {
	Parallel      int    `json:"parallel,omitempty" minimum:"1" maximum:"20" doc:"How many servers move at a time."`
	ServerTimeout string `json:"server_timeout,omitempty" minLength:"1" maxLength:"100" example:"PT10M"`
	Force         bool   `json:"force,omitempty" doc:"Also the last ordinary or reservable host of its zone."`
}

// Resolve implements huma.Resolver.
func (d *DrainNode) Resolve(huma.Context) (faults []error) {
	timeout, fault := fixed(d.ServerTimeout)
	isTime := timeout >= domain.MinDrainServerTime && timeout <= domain.MaxDrainServerTime
	if fault == "" && d.ServerTimeout != "" && !isTime {
		fault = "must be 10 seconds to 24 hours"
	}
	if fault != "" {
		faults = append(faults, apperr.InvalidField("server_timeout", fault))
	}
	return faults
}

type drainInput struct {
	NodePath
	DryRun bool `query:"dry_run" default:"false" doc:"Only say what would be done with each server."`
	Body   *DrainNode
}

func (h handler) drain(ctx context.Context, in *drainInput) (httpx.Response, error) {
	who, token := auth.Caller(ctx)
	req := drainRequest{isDryRun: in.DryRun}
	if in.Body != nil {
		req.parallel, req.isForced = in.Body.Parallel, in.Body.Force
		req.serverTimeout, _ = fixed(in.Body.ServerTimeout) // Resolve has refused what cannot be read
	}
	found, err := reply(h.svc.Drain(ctx, who, token, in.Name, req))
	if err != nil {
		return httpx.Response{}, err
	}
	status := http.StatusAccepted
	if in.DryRun {
		status = http.StatusOK
	}
	resp, err := httpx.JSON(status, found.Body)
	if err == nil {
		resp.Header.Set("ETag", found.ETag)
	}
	return resp, err
}

func (h handler) cancelDrain(ctx context.Context, in *NodePath) (*nodeOutput, error) {
	who, token := auth.Caller(ctx)
	return reply(h.svc.CancelDrain(ctx, who, token, in.Name))
}
