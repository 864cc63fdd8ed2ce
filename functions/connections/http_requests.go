package connections

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cloudfn/cloudfn/shared/auth"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

const (
	noRequest   = "No request of this id concerns the caller's project."
	notReceived = "The request was sent to another project, or the token only reads."
	notSent     = "The request was sent by another project, or the token only reads."
)

// requestRoutes declares the routes of requests for connections.
func requestRoutes(api huma.API, h handler) {
	reads, writes := httpx.Before(auth.CanRead), httpx.Before(auth.CanWrite)
	httpx.Register(api, huma.Operation{
		OperationID: "listConnectionRequests", Method: http.MethodGet, Path: "/v1/connections/requests",
		Tags: tags, Middlewares: reads,
		Summary:   "List requests for connections",
		Responses: httpx.Answers(map[int]string{200: "A page of requests, the oldest first."}),
	}, h.listRequests)
	httpx.Register(api, httpx.Idempotent(huma.Operation{
		OperationID: "requestConnection", Method: http.MethodPost, Path: "/v1/connections/requests", Tags: tags,
		Middlewares: writes, DefaultStatus: http.StatusCreated,
		Summary: "Ask a project for a connection",
		Responses: httpx.Answers(map[int]string{
			201: "The request waits for a decision.",
			409: "As many requests are pending, from the project or to the other one, as there may be.",
		}),
	}), h.createRequest)
	httpx.Register(api, huma.Operation{
		OperationID: "getConnectionRequest", Method: http.MethodGet, Path: "/v1/connections/requests/{id}",
		Tags: tags, Middlewares: reads,
		Summary:   "Show a request for a connection",
		Responses: httpx.Answers(map[int]string{200: "The request.", 404: noRequest}),
	}, h.getRequest)
	httpx.Register(api, huma.Operation{
		OperationID: "withdrawConnectionRequest", Method: http.MethodDelete, Path: "/v1/connections/requests/{id}",
		Tags:        tags,
		Middlewares: writes,
		Summary:     "Withdraw a request for a connection",
		Responses: httpx.Answers(map[int]string{
			204: "The request is withdrawn.", 403: notSent, 404: noRequest,
			409: "The request is granted, declined or expired.",
		}),
	}, h.withdrawRequest)
	httpx.Serve[grantInput, createOutput](api, huma.Operation{
		OperationID: "grantConnectionRequest", Method: http.MethodPost, Path: "/v1/connections/requests/{id}/grant",
		Tags:        tags,
		Middlewares: writes, DefaultStatus: http.StatusCreated,
		Summary: "Grant a request for a connection, or less",
		Responses: httpx.Answers(map[int]string{
			200: "The same request has granted it before.",
			201: "The connection is stored.",
			403: notReceived,
			404: noRequest,
			409: "The request is decided already, or is being granted; or one of the reasons of POST /v1/connections.",
			501: noTrustee,
		}),
	}, h.grantRequest)
	httpx.Register(api, huma.Operation{
		OperationID: "declineConnectionRequest", Method: http.MethodPost, Path: "/v1/connections/requests/{id}/decline",
		Tags:        tags,
		Middlewares: writes, DefaultStatus: http.StatusOK,
		Summary: "Decline a request for a connection",
		Responses: httpx.Answers(map[int]string{
			200: "The request is declined.", 403: notReceived, 404: noRequest,
			409: "The request is granted, withdrawn or expired.",
		}),
	}, h.declineRequest)
}

// RequestPath identifies a request for a connection.
type RequestPath struct {
	ID httpx.ID `path:"id" example:"019b7c5e-4c11-7d02-9a3e-5b8f0e2d7c46" doc:"The id of the request for a connection."`
}

type listRequestsInput struct {
	Received bool                   `query:"received" default:"false"`
	Status   []domain.RequestStatus `query:"status" minItems:"1" example:"[\"pending\"]"`
	httpx.Page
	Marker httpx.ID `query:"marker" example:"019b7c5e-4c11-7d02-9a3e-5b8f0e2d7c46" doc:"The last id before."`
}

func (h handler) listRequests(ctx context.Context, in *listRequestsInput) (*httpx.Value[ConnectionRequestPage], error) {
	who := auth.CallerOrNobody(ctx)
	q := domain.ConnectionRequestQuery{Received: in.Received, Limit: in.Limit, Marker: in.Marker.UUID}
	for _, status := range in.Status {
		q.Statuses = append(q.Statuses, string(status))
	}
	found, more, err := h.svc.ListRequests(ctx, who, q)
	if err != nil {
		return nil, err
	}
	page := ConnectionRequestPage{Requests: make([]ConnectionRequest, len(found))}
	for i, r := range found {
		page.Requests[i] = showRequest(who, r)
	}
	if more {
		page.Next = in.Next(found[len(found)-1].ID.String())
	}
	return &httpx.Value[ConnectionRequestPage]{Body: page}, nil
}

type createRequestInput struct{ Body CreateConnectionRequest }

type createRequestOutput struct {
	Location string `header:"Location" doc:"Where the request is." pattern:"^/v1/connections/requests/[0-9a-f-]{36}$"`
	Body     ConnectionRequest
}

func (h handler) createRequest(ctx context.Context, in *createRequestInput) (*createRequestOutput, error) {
	who := auth.CallerOrNobody(ctx)
	stored, err := h.svc.CreateRequest(ctx, in.Body.request(who))
	if err != nil {
		return nil, err
	}
	return &createRequestOutput{"/v1/connections/requests/" + stored.ID.String(), showRequest(who, stored)}, nil
}

func (h handler) getRequest(ctx context.Context, in *RequestPath) (*httpx.Value[ConnectionRequest], error) {
	who := auth.CallerOrNobody(ctx)
	r, err := h.svc.requests.Get(ctx, who.ProjectID, in.ID.UUID)
	return &httpx.Value[ConnectionRequest]{Body: showRequest(who, r)}, err
}

func (h handler) withdrawRequest(ctx context.Context, in *RequestPath) (*struct{}, error) {
	return nil, h.svc.WithdrawRequest(ctx, auth.CallerOrNobody(ctx), in.ID.UUID)
}

type grantInput struct {
	RequestPath
	Body GrantConnectionRequest
}

func (h handler) grantRequest(ctx context.Context, in *grantInput) (httpx.Response, error) {
	who, token := auth.Caller(ctx)
	c, created, err := h.svc.GrantRequest(ctx, who, token, in.ID.UUID, in.Body)
	if err != nil {
		return httpx.Response{}, err
	}
	status := http.StatusOK
	if created {
		status = http.StatusCreated
	}
	resp, err := httpx.JSON(status, show(who, c))
	if err != nil {
		return resp, err
	}
	resp.Header.Set("ETag", httpx.ETag(c.Seq))
	if created {
		resp.Header.Set("Location", location(c))
	}
	return resp, nil
}

type declineInput struct {
	RequestPath
	Body DeclineConnectionRequest
}

func (h handler) declineRequest(ctx context.Context, in *declineInput) (*httpx.Value[ConnectionRequest], error) {
	who := auth.CallerOrNobody(ctx)
	r, err := h.svc.DeclineRequest(ctx, who, in.ID.UUID, string(in.Body.Reason))
	return &httpx.Value[ConnectionRequest]{Body: showRequest(who, r)}, err
}
