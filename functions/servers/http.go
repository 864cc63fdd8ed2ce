package servers

import (
	"context"
	"net/http"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/auth"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

const (
	noServer = "The project or the connection has no server and no instance of this id, or the caller may not use " +
		"the connection."
	notPermitted = "The token may not do this, or is not scoped to a project; or the connection does not permit it, " +
		"or has ended."
)

type handler struct{ svc service }

// routes declares what the function serves.
func routes(api huma.API, s service) {
	h := handler{s}
	describe(api)
	httpx.Register(api, operation("GET /v1/servers", "listServers", "List the project's servers", answers{
		200: "A page of servers.", 501: "",
		404: "An OpenStack service does not know what was requested, or the caller may not use the connection.",
	}), h.list)
	connect := operation("POST /v1/servers", "connectServer", "Connect an existing server", answers{
		201: "The server is tracked from now on.", 403: notPermitted, 501: "",
		404: "The project has no such server, or the caller may not use the connection.",
		409: "The server is being deleted or its cell is down, it is managed through another connection, its " +
			"instance has another id than the one given, or the id is taken.",
	})
	connect.DefaultStatus = http.StatusCreated
	connect.Responses["200"] = answer[ServerConnected](api, "The server is tracked already.")
	connect.Responses["202"] = answer[ServerConnecting](api,
		"The server will be connected through the connection. `action_id` identifies the action.")
	httpx.Serve[connectInput, connectOutput](api, connect, h.connect)
	httpx.Register(api, operation("GET /v1/servers/{id}", "getServer", "Show one server", answers{
		200: "The server.", 404: noServer, 501: "",
	}), h.get)
	change := operation("PATCH /v1/servers/{id}", "changeServer", "Allow the reuse of a server", answers{
		200: "The server with its new mark.",
		404: "The project has no such server that is managed through a connection.",
		409: "The server is not managed through a connection.",
	})
	httpx.Register(api, change, h.change)
	remove := operation("DELETE /v1/servers/{id}", "deleteServer", "Delete or disconnect a server", answers{
		204: "Nova deletes the server, it is deleted already, or it is disconnected.",
		403: notPermitted, 404: noServer, 501: "",
		409: "The server is locked (Nova's message), the instance has no server, or the server existed before it was " +
			"connected and `force` is not true.",
	})
	remove.Responses["202"] = answer[ServerActed](api,
		"The server will be deleted through the connection. `action_id` identifies the action.")
	httpx.Serve[removeInput, struct{}](api, remove, h.remove)
	history := operation("GET /v1/servers/history/{id}", "getServerHistory", "List a server's events", answers{
		200: "A page of the events.",
		404: "The project or the connection has no such instance, or the caller may not use the connection.",
	})
	httpx.Register(api, history, h.history)
	actionRoutes(api, h)
	consoleRoutes(api, h)
}

// answers are the texts of an operation's responses.
type answers map[int]string

func operation(pattern, id, summary string, texts answers) huma.Operation {
	method, path, _ := strings.Cut(pattern, " ")
	check := auth.CanWrite
	if method == http.MethodGet {
		check = auth.CanRead
	}
	return huma.Operation{
		OperationID: id, Method: method, Path: path, Summary: summary, Tags: []string{"servers"},
		Middlewares: httpx.Before(check), Responses: httpx.Answers(texts),
	}
}

func (h handler) access(ctx context.Context, connection uuid.UUID, region string) (access, error) {
	who, token := auth.Caller(ctx)
	return h.svc.access(ctx, who, token, connection, region)
}

func (h handler) list(ctx context.Context, in *listInput) (*httpx.Value[ServerPage], error) {
	a, err := h.access(ctx, in.ConnectionID.UUID, in.Region)
	if err != nil {
		return nil, err
	}
	q := query{tracked: in.tracked}
	q.Status, q.Name, q.Limit = string(in.Status), in.Name, in.Limit
	if in.Marker.UUID != uuid.Nil {
		q.Marker = in.Marker.String()
	}
	found, marker, err := h.svc.List(ctx, a, q)
	for n := range found {
		found[n].Tags = nil
	}
	out := ServerPage{Servers: found}
	if marker != "" {
		out.Next = in.Next(marker)
	}
	return &httpx.Value[ServerPage]{Body: out}, err
}

func (h handler) get(ctx context.Context, in *getInput) (*httpx.Value[domain.Server], error) {
	a, err := h.access(ctx, in.ConnectionID.UUID, in.Region)
	if err != nil {
		return nil, err
	}
	server, err := h.svc.Get(ctx, a, in.ID.String())
	if err == nil && a.cloud != nil {
		fillNames(ctx, a.cloud, &server)
	}
	return &httpx.Value[domain.Server]{Body: server}, err
}

func (h handler) connect(ctx context.Context, in *connectInput) (httpx.Response, error) {
	a, err := h.access(ctx, in.Body.ConnectionID.OrNil(), "")
	if err != nil {
		return httpx.Response{}, err
	}
	done, err := h.svc.Connect(ctx, a, in.Body.ServerID.String(), in.Body.ID.OrNil())
	if err != nil {
		return httpx.Response{}, err
	}
	if done.instance == nil {
		return httpx.JSON(http.StatusAccepted, ServerConnecting{
			ID: done.action.InstanceID, ServerID: in.Body.ServerID.UUID, ConnectionID: a.Connection.ID,
			ActionID: done.action.ID,
		})
	}
	status := http.StatusOK
	if done.made {
		status = http.StatusCreated
	}
	resp, err := httpx.JSON(status, showConnected(*done.instance))
	if err == nil {
		resp.Header.Set("Location", "/v1/servers/"+done.instance.ServerID)
	}
	return resp, err
}

func (h handler) change(ctx context.Context, in *changeInput) (*httpx.Value[ServerChanged], error) {
	a, err := h.access(ctx, uuid.Nil, "")
	if err != nil {
		return nil, err
	}
	i, err := h.svc.MarkReusable(ctx, a, in.ID.String(), in.Body.Reusable)
	return &httpx.Value[ServerChanged]{Body: ServerChanged{
		ID: i.ID, ServerID: serverID(i.ServerID), State: i.State, Origin: i.Origin, ConnectionID: i.ConnectionID,
		Reusable: in.Body.Reusable,
	}}, err
}

func (h handler) remove(ctx context.Context, in *removeInput) (httpx.Response, error) {
	deleted := httpx.Response{Status: http.StatusNoContent, Header: http.Header{}}
	a, err := h.access(ctx, in.ConnectionID.UUID, "")
	if err != nil {
		return httpx.Response{}, err
	}
	if in.Mode == disconnect {
		return deleted, h.svc.Disconnect(ctx, a, in.ID.String())
	}
	done, err := h.svc.Do(ctx, a, newActionRequest(domain.Delete, false, in.Force), []string{in.ID.String()})
	switch {
	case err != nil:
		return httpx.Response{}, err
	case done[0].err == nil && done[0].ActionID != nil:
		return httpx.JSON(http.StatusAccepted, showActed(done[0]))
	}
	return deleted, done[0].err
}

func (h handler) history(ctx context.Context, in *historyInput) (*httpx.Value[ServerHistory], error) {
	a, err := h.access(ctx, in.ConnectionID.UUID, "")
	if err != nil {
		return nil, err
	}
	instance, found, err := h.svc.History(ctx, a, in.ID.String(), int64(in.Marker), in.Limit+1)
	if err != nil {
		return nil, err
	}
	out := ServerHistory{InstanceID: instance, Events: make([]ServerEvent, min(in.Limit, len(found)))}
	for n := range out.Events {
		e := found[n]
		id := e.Subject + ":" + strconv.FormatInt(e.Seq, 10)
		out.Events[n] = ServerEvent{ID: id, Type: e.Type, At: e.At, Data: e.Data}
	}
	if len(found) > in.Limit {
		out.Next = in.Next(strconv.FormatInt(found[in.Limit-1].Seq, 10))
	}
	return &httpx.Value[ServerHistory]{Body: out}, nil
}
