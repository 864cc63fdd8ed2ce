package connections

import (
	"context"
	"net/http"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/auth"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

const (
	noConnection = "The caller can see no connection of this id."
	hasEnded     = "The connection has ended."
	notOwner     = "The connection is another project's, or the token only reads."
	noTrustee    = "The operator has set up no service account for trusts, or the cloud lacks a service."
)

var tags = []string{"connections"}

// routes declares what the function serves.
func routes(api huma.API, s service) {
	h := handler{s}
	reads, writes := httpx.Before(auth.CanRead), httpx.Before(auth.CanWrite)
	describe(api)
	httpx.Register(api, huma.Operation{
		OperationID: "listConnections", Method: http.MethodGet, Path: "/v1/connections", Tags: tags, Middlewares: reads,
		Summary:   "List connections",
		Responses: httpx.Answers(map[int]string{200: "A page of connections, the oldest first."}),
	}, h.list)
	httpx.Register(api, httpx.Idempotent(huma.Operation{
		OperationID: "createConnection", Method: http.MethodPost, Path: "/v1/connections", Tags: tags,
		Middlewares: writes, DefaultStatus: http.StatusCreated,
		Summary: "Delegate",
		Responses: httpx.Answers(map[int]string{
			201: "The connection is stored.",
			409: "The project has as many connections as it may have, or Keystone lets the token make no trust, " +
				"because the token was delegated itself.",
			501: noTrustee,
		}),
	}), h.create)
	httpx.Register(api, huma.Operation{
		OperationID: "suggestAccessRules", Method: http.MethodGet, Path: "/v1/connections/access-rules", Tags: tags,
		Summary:   "List what an application credential must allow",
		Responses: httpx.Answers(map[int]string{200: "The rules."}),
	}, h.accessRules)
	httpx.Register(api, huma.Operation{
		OperationID: "getConnection", Method: http.MethodGet, Path: "/v1/connections/{id}",
		Tags: tags, Middlewares: reads,
		Summary:   "Show a connection",
		Responses: httpx.Answers(map[int]string{200: "The connection, without its secret.", 404: noConnection}),
	}, h.get)
	httpx.Register(api, huma.Operation{
		OperationID: "changeConnection", Method: http.MethodPatch, Path: "/v1/connections/{id}",
		Tags: tags, Middlewares: writes,
		Summary: "Change a connection",
		Responses: httpx.Answers(map[int]string{
			200: "The connection as it is now.",
			403: "The connection is another project's, the token only reads, or the change would permit more than " +
				"the caller may give.",
			404: noConnection,
			409: "The connection has ended, others change it at the same time, an open lease that names it needs " +
				"what the change takes away, or Keystone lets the token make no trust, because the token was " +
				"delegated itself.",
			412: "",
			501: "The operator has set up no service account for trusts.",
		}),
	}, h.change)
	endRoutes(api, h)
	requestRoutes(api, h)
}

// endRoutes declares the routes that end, pause or check a connection.
func endRoutes(api huma.API, h handler) {
	reads, writes := httpx.Before(auth.CanRead), httpx.Before(auth.CanWrite)
	httpx.Register(api, huma.Operation{
		OperationID: "deleteConnection", Method: http.MethodDelete, Path: "/v1/connections/{id}",
		Tags: tags, Middlewares: writes,
		Summary: "End a connection, and revoke its delegation",
		Responses: httpx.Answers(map[int]string{
			204: "The connection has ended.", 403: notOwner, 404: noConnection,
			409: "It is that of a lease or of declared resources, and ends with them, or open leases name it: the " +
				"error lists them.",
		}),
	}, h.delete)
	httpx.Register(api, huma.Operation{
		OperationID: "suspendConnection", Method: http.MethodPost, Path: "/v1/connections/{id}/suspend", Tags: tags,
		Middlewares: writes, DefaultStatus: http.StatusOK,
		Summary: "Suspend a connection until it is resumed",
		Responses: httpx.Answers(map[int]string{
			200: "The connection as it is now. It may have been suspended already.", 403: notOwner, 404: noConnection,
			409: hasEnded,
		}),
	}, h.suspend)
	httpx.Register(api, huma.Operation{
		OperationID: "resumeConnection", Method: http.MethodPost, Path: "/v1/connections/{id}/resume", Tags: tags,
		Middlewares: writes, DefaultStatus: http.StatusOK,
		Summary: "Resume a suspended connection",
		Responses: httpx.Answers(map[int]string{
			200: "The connection as it is now. It may have been active already.", 403: notOwner, 404: noConnection,
			409: hasEnded,
		}),
	}, h.resume)
	httpx.Serve[ConnectionPath, httpx.Value[ConnectionCheck]](api, huma.Operation{
		OperationID: "checkConnection", Method: http.MethodPost, Path: "/v1/connections/{id}/check", Tags: tags,
		Middlewares: reads, DefaultStatus: http.StatusOK,
		Summary: "Check whether Keystone still accepts a connection",
		Responses: httpx.Answers(map[int]string{
			200: "What Keystone says. It is not called for a connection that has ended.",
			202: "Keystone has not answered in time. The check goes on: repeat the request after `Retry-After`.",
			404: noConnection,
			503: "Keystone or the database is unavailable, or the connection's cloud does not answer.",
		}),
	}, h.check)
}

// ConnectionPath identifies a connection. It is exported because huma ignores unexported embedded structs.
type ConnectionPath struct {
	ID httpx.ID `path:"id" example:"019b7c5e-1f20-7a31-b5d4-0c7e2f9a6b13" doc:"The connection's id."`
}

type handler struct{ svc service }

type listInput struct {
	Usable bool                      `query:"usable" default:"false"`
	Status []domain.ConnectionStatus `query:"status" minItems:"1" example:"[\"lost\",\"deleted\"]"`
	Of     []domain.ConnectionOf     `query:"of" minItems:"1" example:"[\"lease\"]"`
	httpx.PageRequest
	Marker httpx.ID `query:"marker" example:"019b7c5e-1f20-7a31-b5d4-0c7e2f9a6b13" doc:"The last id before."`
}

// Resolve implements huma.Resolver.
func (in *listInput) Resolve(huma.Context) []error {
	if in.Usable && in.Status != nil {
		return []error{apperr.InvalidField("status",
			"cannot be combined with usable=true, which lists active connections")}
	}
	if in.Usable && in.Of != nil {
		return []error{apperr.InvalidField("of",
			"cannot be combined with usable=true: no one acts through connections of leases or declared resources")}
	}
	return nil
}

func (h handler) list(ctx context.Context, in *listInput) (*httpx.Value[ConnectionPage], error) {
	who := auth.CallerOrNone(ctx)
	q := domain.ConnectionQuery{Usable: in.Usable, Marker: in.Marker.UUID}
	for _, status := range in.Status {
		q.Statuses = append(q.Statuses, string(status))
	}
	for _, of := range in.Of {
		q.Of = append(q.Of, string(of))
	}
	page, err := httpx.ReadPage(ctx, in.Limit, func(limit int) ([]domain.Connection, error) {
		q.Limit = limit
		return h.svc.connections.List(ctx, who, q)
	}, func(c domain.Connection) string { return c.ID.String() })
	shown := httpx.Each(page.Items, func(c domain.Connection) Connection { return show(who, c) })
	return &httpx.Value[ConnectionPage]{Body: ConnectionPage{shown, page.Next}}, err
}

type createInput struct{ Body CreateConnection }

type createOutput struct {
	Location string `header:"Location" doc:"Where the connection is." pattern:"^/v1/connections/[0-9a-f-]{36}$"`
	ETag     string `header:"ETag" doc:"The connection's version." pattern:"^\"[^\"]+\"$"`
	Body     Connection
}

func (h handler) create(ctx context.Context, in *createInput) (*createOutput, error) {
	who, token := auth.Caller(ctx)
	stored, err := h.svc.Create(ctx, who, token, in.Body.draft(who))
	if err != nil {
		return nil, err
	}
	return &createOutput{location(stored), httpx.ETag(stored.Seq), show(who, stored)}, nil
}

func location(c domain.Connection) string { return "/v1/connections/" + c.ID.String() }

type rulesInput struct {
	Actions []domain.Permission `query:"actions" minItems:"1" uniqueItems:"true" example:"[\"allocate\",\"start\"]"`
}

func (h handler) accessRules(_ context.Context, in *rulesInput) (*httpx.Value[SuggestedAccessRules], error) {
	if in.Actions == nil {
		for _, name := range domain.Permissions() {
			in.Actions = append(in.Actions, domain.Permission(name))
		}
	}
	return &httpx.Value[SuggestedAccessRules]{Body: SuggestedAccessRules{domain.AccessRules(in.Actions)}}, nil
}

type connectionOutput struct {
	ETag string `header:"ETag" doc:"The connection's version." pattern:"^\"[^\"]+\"$"`
	Body Connection
}

func reply(who domain.Identity, c domain.Connection, err error) (*connectionOutput, error) {
	return &connectionOutput{httpx.ETag(c.Seq), show(who, c)}, err
}

func (h handler) get(ctx context.Context, in *ConnectionPath) (*connectionOutput, error) {
	who := auth.CallerOrNone(ctx)
	c, err := h.svc.connections.Get(ctx, who, in.ID.UUID)
	return reply(who, c, err)
}

type changeInput struct {
	ConnectionPath
	httpx.MatchRequest
	Body ChangeConnection
}

func (h handler) change(ctx context.Context, in *changeInput) (*connectionOutput, error) {
	who, token := auth.Caller(ctx)
	c, err := h.svc.Change(ctx, who, token, in.ID.UUID, in.Body, httpx.IfMatch(ctx, "connection"))
	return reply(who, c, err)
}

func (h handler) delete(ctx context.Context, in *ConnectionPath) (*struct{}, error) {
	who, token := auth.Caller(ctx)
	return nil, h.svc.Delete(ctx, who, token, in.ID.UUID)
}

func (h handler) suspend(ctx context.Context, in *ConnectionPath) (*connectionOutput, error) {
	who := auth.CallerOrNone(ctx)
	c, err := h.svc.Suspend(ctx, who, in.ID.UUID, true)
	return reply(who, c, err)
}

func (h handler) resume(ctx context.Context, in *ConnectionPath) (*connectionOutput, error) {
	who := auth.CallerOrNone(ctx)
	c, err := h.svc.Suspend(ctx, who, in.ID.UUID, false)
	return reply(who, c, err)
}

func (h handler) check(ctx context.Context, in *ConnectionPath) (httpx.Response, error) {
	who := auth.CallerOrNone(ctx)
	c, works, err := h.svc.Check(ctx, who, in.ID.UUID)
	if err != nil {
		return httpx.Response{}, err
	}
	if works != nil {
		return httpx.JSON(http.StatusOK, showCheck(who, c, works))
	}
	after := strconv.Itoa(int(recheckAfter.Seconds()))
	return httpx.JSON(http.StatusAccepted, showCheck(who, c, works), "Retry-After", after)
}

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
	httpx.PageRequest
	Marker httpx.ID `query:"marker" example:"019b7c5e-4c11-7d02-9a3e-5b8f0e2d7c46" doc:"The last id before."`
}

func (h handler) listRequests(ctx context.Context, in *listRequestsInput) (*httpx.Value[ConnectionRequestPage], error) {
	who := auth.CallerOrNone(ctx)
	q := domain.ConnectionRequestQuery{Received: in.Received, Marker: in.Marker.UUID}
	for _, status := range in.Status {
		q.Statuses = append(q.Statuses, string(status))
	}
	page, err := httpx.ReadPage(ctx, in.Limit, func(limit int) ([]domain.ConnectionRequest, error) {
		q.Limit = limit
		return h.svc.requests.List(ctx, who.ProjectID, q)
	}, func(r domain.ConnectionRequest) string { return r.ID.String() })
	shown := httpx.Each(page.Items, func(r domain.ConnectionRequest) ConnectionRequest { return showRequest(who, r) })
	return &httpx.Value[ConnectionRequestPage]{Body: ConnectionRequestPage{shown, page.Next}}, err
}

type createRequestInput struct{ Body CreateConnectionRequest }

type createRequestOutput struct {
	Location string `header:"Location" doc:"Where the request is." pattern:"^/v1/connections/requests/[0-9a-f-]{36}$"`
	Body     ConnectionRequest
}

func (h handler) createRequest(ctx context.Context, in *createRequestInput) (*createRequestOutput, error) {
	who := auth.CallerOrNone(ctx)
	stored, err := h.svc.CreateRequest(ctx, in.Body.request(who))
	if err != nil {
		return nil, err
	}
	return &createRequestOutput{"/v1/connections/requests/" + stored.ID.String(), showRequest(who, stored)}, nil
}

func (h handler) getRequest(ctx context.Context, in *RequestPath) (*httpx.Value[ConnectionRequest], error) {
	who := auth.CallerOrNone(ctx)
	r, err := h.svc.requests.Get(ctx, who.ProjectID, in.ID.UUID)
	return &httpx.Value[ConnectionRequest]{Body: showRequest(who, r)}, err
}

func (h handler) withdrawRequest(ctx context.Context, in *RequestPath) (*struct{}, error) {
	return nil, h.svc.WithdrawRequest(ctx, auth.CallerOrNone(ctx), in.ID.UUID)
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
	status, at := http.StatusOK, ""
	if created {
		status, at = http.StatusCreated, location(c)
	}
	return httpx.JSON(status, show(who, c), "ETag", httpx.ETag(c.Seq), "Location", at)
}

type declineInput struct {
	RequestPath
	Body DeclineConnectionRequest
}

func (h handler) declineRequest(ctx context.Context, in *declineInput) (*httpx.Value[ConnectionRequest], error) {
	who := auth.CallerOrNone(ctx)
	r, err := h.svc.DeclineRequest(ctx, who, in.ID.UUID, string(in.Body.Reason))
	return &httpx.Value[ConnectionRequest]{Body: showRequest(who, r)}, err
}
