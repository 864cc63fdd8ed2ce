package servers

import (
	"context"
	"encoding/json"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/agent"
	"github.com/cloudfn/cloudfn/shared/apperr"
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
	remove := operation("DELETE /v1/servers/{id}", "deleteServer", "Delete or disconnect a server", answers{
		204: "Nova deletes the server, it is deleted already, or it is disconnected.",
		403: notPermitted, 404: noServer, 501: "",
		409: "The server is locked (Nova's message), the instance has no server, or the server existed before it was " +
			"connected and `force` is not true.",
	})
	remove.Responses["202"] = answer[ServerActed](api,
		"The server will be deleted through the connection. `action_id` identifies the action.")
	remove.Responses["200"] = answer[ServerDeletion](api, "With `dry_run=true`: nothing is deleted.")
	httpx.Serve[removeInput, struct{}](api, remove, h.remove)
	history := operation("GET /v1/servers/history/{id}", "getServerHistory", "List a server's events", answers{
		200: "A page of the events.",
		404: "The project or the connection has no such instance, or the caller may not use the connection.",
	})
	httpx.Register(api, history, h.history)
	actionRoutes(api, h)
	changeRoutes(api, h)
	consoleRoutes(api, h)
	volumeRoutes(api, h)
	networkRoutes(api, h)
	floatingIPRoutes(api, h)
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
	q.Status, q.Name, q.Limit, q.IP, q.KeyName = string(in.Status), in.Name, in.Limit, in.IP, in.KeyName
	q.Host, q.ChangedSince, q.Sort = in.Host, in.ChangedSince, in.Sort
	q.flavor, q.image = in.Flavor, in.Image
	if in.Marker.UUID != uuid.Nil {
		q.Marker = in.Marker.String()
	}
	found, marker, err := h.svc.List(ctx, a, q)
	for n := range found {
		found[n].Tags = nil
	}
	out := ServerPage{Servers: found}
	if marker != "" {
		out.Next = httpx.NextPage(ctx, marker)
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
	return httpx.JSON(status, showConnected(*done.instance), "Location", "/v1/servers/"+done.instance.ServerID)
}

func (h handler) remove(ctx context.Context, in *removeInput) (httpx.Response, error) {
	deleted := httpx.Response{Status: http.StatusNoContent, Header: http.Header{}}
	a, err := h.access(ctx, in.ConnectionID.UUID, "")
	if err != nil {
		return httpx.Response{}, err
	}
	if in.DryRun {
		deletion, err := h.svc.Deletion(ctx, a, in.ID.String(), in.Force)
		if err != nil {
			return httpx.Response{}, err
		}
		return httpx.JSON(http.StatusOK, deletion)
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
	var instance uuid.UUID
	page, err := httpx.ReadPage(ctx, in.Limit, func(limit int) (found []domain.Event, err error) {
		instance, found, err = h.svc.History(ctx, a, in.ID.String(), int64(in.Marker), limit)
		return found, err
	}, func(e domain.Event) string { return strconv.FormatInt(e.Seq, 10) })
	shown := httpx.Each(page.Items, func(e domain.Event) ServerEvent {
		id := e.Subject + ":" + strconv.FormatInt(e.Seq, 10)
		return ServerEvent{ID: id, Type: e.Type, At: e.At, Data: e.Data}
	})
	return &httpx.Value[ServerHistory]{Body: ServerHistory{instance, shown, page.Next}}, err
}

// ServerPath identifies a server. It is exported because huma ignores unexported embedded structs.
type ServerPath struct {
	ID httpx.ID `path:"id" example:"4f8052c0-49f2-4b75-a508-5c4454e37731" doc:"The id of the server or its instance."`
}

type listInput struct {
	httpx.PageRequest
	Status       serverStatus      `query:"status" example:"ACTIVE" doc:"Only servers of this Nova status."`
	Name         string            `query:"name" example:"web" doc:"Only servers whose name contains this text."`
	IP           string            `query:"ip" pattern:"^[0-9a-f.:]*$" example:"10.0.0."`
	Flavor       string            `query:"flavor" maxLength:"255" example:"m1.tiny"`
	Image        string            `query:"image" maxLength:"255" example:"cirros"`
	KeyName      string            `query:"key_name" maxLength:"255" example:"laptop"`
	Host         string            `query:"host" maxLength:"255" example:"compute-1"`
	ChangedSince time.Time         `query:"changes_since" example:"2026-01-02T03:04:05Z"`
	Sort         domain.ServerSort `query:"sort" example:"-updated_at"`
	Tracked      bool              `query:"tracked" example:"true" doc:"Only tracked servers, or only the others."`
	Marker       httpx.ID          `query:"marker" example:"4f8052c0-49f2-4b75-a508-5c4454e37731"`
	ConnectionID httpx.ID          `query:"connection_id" example:"019b7c5e-1f20-7a31-b5d4-0c7e2f9a6b13"`
	Region       string            `query:"region" minLength:"1" example:"RegionOne"`

	tracked *bool // nil = both
}

// Resolve implements huma.Resolver.
func (in *listInput) Resolve(ctx huma.Context) (faults []error) {
	if ctx.Query("tracked") != "" {
		in.tracked = &in.Tracked
	}
	if in.ConnectionID.UUID != uuid.Nil {
		faults = append(faults, exclude(ctx, notWithConnection, "status", "name", "ip", "flavor", "image", "key_name",
			"host", "changes_since", "sort", "tracked", "region")...)
	} else if in.Tracked {
		faults = exclude(ctx, "cannot be combined with tracked=true", "region", "changes_since", "sort")
	}
	return faults
}

// exclude reports those of the parameters that were given.
func exclude(ctx huma.Context, why string, names ...string) (faults []error) {
	for _, name := range names {
		if ctx.Query(name) != "" {
			faults = append(faults, apperr.InvalidField(name, why))
		}
	}
	return faults
}

const notWithConnection = "cannot be combined with connection_id"

type getInput struct {
	ServerPath
	ConnectionID httpx.ID `query:"connection_id" example:"019b7c5e-1f20-7a31-b5d4-0c7e2f9a6b13"`
	Region       string   `query:"region" minLength:"1" example:"RegionOne"`
}

// Resolve implements huma.Resolver.
func (in *getInput) Resolve(huma.Context) []error {
	if in.Region != "" && in.ConnectionID.UUID != uuid.Nil {
		return []error{apperr.InvalidField("region", notWithConnection)}
	}
	return nil
}

type historyInput struct {
	ServerPath
	httpx.PageRequest
	ConnectionID httpx.ID `query:"connection_id" example:"019b7c5e-1f20-7a31-b5d4-0c7e2f9a6b13"`
	Marker       int      `query:"marker" minimum:"1" maximum:"9007199254740992" example:"4"`
}

type connectInput struct{ Body ServerConnect }

type connectOutput struct {
	Location string `header:"Location" doc:"Where the server is." pattern:"^/v1/servers/[0-9a-f-]{36}$"`
	Body     ServerConnected
}

// ServerConnect is the body of POST /v1/servers.
type ServerConnect struct {
	ServerID     httpx.ID  `json:"server_id"`
	ID           *httpx.ID `json:"id,omitempty" nullable:"true"`
	ConnectionID *httpx.ID `json:"connection_id,omitempty" nullable:"true"`
}

// The modes of DELETE.
const (
	deallocate = "deallocate" // the same as the action delete
	disconnect = "disconnect"
)

type removeInput struct {
	ServerPath
	Mode string `query:"mode" enum:"deallocate,disconnect" default:"deallocate" doc:"Delete, or stop tracking."`

	Force        bool     `query:"force" default:"false" doc:"Also a server that existed before it was connected."`
	DryRun       bool     `query:"dry_run" default:"false" doc:"Only show what is deleted with it, and what stays."`
	ConnectionID httpx.ID `query:"connection_id" example:"019b7c5e-1f20-7a31-b5d4-0c7e2f9a6b13"`
}

// Resolve implements huma.Resolver.
func (in *removeInput) Resolve(huma.Context) (faults []error) {
	const ofDeallocate = "can be combined with the mode " + deallocate + " only"
	if in.Mode == disconnect && in.Force {
		faults = append(faults, apperr.InvalidField("force", ofDeallocate))
	}
	if in.Mode == disconnect && in.DryRun {
		faults = append(faults, apperr.InvalidField("dry_run", ofDeallocate))
	}
	if in.DryRun && in.ConnectionID.UUID != uuid.Nil {
		faults = append(faults, apperr.InvalidField("dry_run", "takes a token of the server's project"))
	}
	return faults
}

// ServerPage is a page of servers.
type ServerPage struct {
	Servers []domain.Server `json:"servers" maxItems:"1000"`
	Next    *string         `json:"next" pattern:"^/v1/servers\\?" doc:"The next page's URL; null at the end."`
}

// ServerConnected is a server that is tracked.
type ServerConnected struct {
	ID           uuid.UUID            `json:"id" doc:"The instance's id."`
	ServerID     serverID             `json:"server_id"`
	State        domain.InstanceState `json:"state"`
	Origin       string               `json:"origin" enum:"launched,connected"`
	ConnectionID *uuid.UUID           `json:"connection_id,omitempty" doc:"The connection that manages it, if any."`
}

func showConnected(i domain.Instance) ServerConnected {
	out := ServerConnected{ID: i.ID, ServerID: serverID(i.ServerID), State: i.State, Origin: i.Origin}
	if i.ConnectionID != uuid.Nil {
		out.ConnectionID = &i.ConnectionID
	}
	return out
}

// ServerConnecting is a server that run-connections connects.
type ServerConnecting struct {
	ID           uuid.UUID `json:"id" doc:"The id that the instance has, or will have."`
	ServerID     uuid.UUID `json:"server_id"`
	ConnectionID uuid.UUID `json:"connection_id"`
	ActionID     uuid.UUID `json:"action_id" doc:"The action that connects it."`
}

// ServerHistory is a page of a server's events.
type ServerHistory struct {
	InstanceID uuid.UUID     `json:"instance_id"`
	Events     []ServerEvent `json:"events" maxItems:"1000"`
	Next       *string       `json:"next" pattern:"^/v1/servers/history/" doc:"The next page's URL; null at the end."`
}

// ServerEvent is an event as callbacks get it.
type ServerEvent struct {
	ID   string          `json:"id" pattern:"^[0-9a-f-]{36}:[1-9][0-9]*$" doc:"The same as in deliveries."`
	Type string          `json:"type" minLength:"1"`
	At   time.Time       `json:"at"`
	Data json.RawMessage `json:"data"`
}

// The types of domain, as the API names and describes them.
type (
	// ServerFlavor describes a server's flavor.
	ServerFlavor domain.FlavorRef
	// ServerImage describes a server's image.
	ServerImage domain.ImageRef
	// ServerFault describes a server's fault.
	ServerFault domain.Fault
	// ServerInstance describes the instance that a server is tracked as.
	ServerInstance domain.Tracked
	// ActionError describes why an action failed.
	ActionError domain.Problem
	// RegistryLogin describes the login to an image's registry.
	RegistryLogin agent.Registry
	// ServerAgent describes an instance's agent.
	ServerAgent struct {
		DeploymentID uuid.UUID         `json:"deployment_id"`
		Image        string            `json:"image" minLength:"1" doc:"The OCI reference."`
		DeployedAt   time.Time         `json:"deployed_at" doc:"When the deployment was requested."`
		ReadyAt      orNull[time.Time] `json:"ready_at" doc:"When the agent reported ready. Null until then."`
	}
)

// describe says what the types' tags cannot.
func describe(api huma.API) {
	schemas := api.OpenAPI().Components.Schemas
	for t, name := range map[reflect.Type]reflect.Type{
		reflect.TypeFor[domain.FlavorRef](): reflect.TypeFor[ServerFlavor](),
		reflect.TypeFor[domain.Fault]():     reflect.TypeFor[ServerFault](),
		reflect.TypeFor[domain.Agent]():     reflect.TypeFor[ServerAgent](),
		reflect.TypeFor[domain.Problem]():   reflect.TypeFor[ActionError](),
		reflect.TypeFor[agent.Registry]():   reflect.TypeFor[RegistryLogin](),
	} {
		schemas.RegisterTypeAlias(t, name)
	}
	httpx.DescribeAs[domain.ImageRef, orNull[ServerImage]](api)
	httpx.DescribeAs[domain.Tracked, orNull[ServerInstance]](api)
	httpx.Refer[domain.InstanceState](api, "InstanceState")
	httpx.Refer[serverID](api, "UUID")
	httpx.Enum[serverStatus](api, "", domain.ServerStatuses()...)
	httpx.Enum[domain.ServerSort](api, "", domain.ServerSorts()...)
	httpx.Enum[domain.ActionStatus](api, "DelegatedActionStatus", "running", "done", "failed")
	describeActions(api)
}

// answer is a response beside the one of an operation's output type.
func answer[T any](api huma.API, text string) *huma.Response {
	schema := api.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[T](), true, "")
	return &huma.Response{Description: text, Content: map[string]*huma.MediaType{"application/json": {Schema: schema}}}
}

// orNull describes a T that may be null. Huma's nullable is for scalars only.
type orNull[T any] struct{}

// Schema implements huma.SchemaProvider.
func (orNull[T]) Schema(r huma.Registry) *huma.Schema {
	return &huma.Schema{AnyOf: []*huma.Schema{r.Schema(reflect.TypeFor[T](), true, ""), {Type: "null"}}}
}

// serverStatus is a status of Nova's.
type serverStatus string

// serverID is Nova's id of a server, a UUID.
type serverID string

// ServerResult is a ServerActed or a ServerNotActed.
type ServerResult struct{ value any }

// MarshalJSON implements json.Marshaler.
func (r ServerResult) MarshalJSON() ([]byte, error) { return json.Marshal(r.value) }

// Schema implements huma.SchemaProvider.
func (ServerResult) Schema(r huma.Registry) *huma.Schema {
	return httpx.SharedSchema(r, "ServerResult", huma.Schema{OneOf: []*huma.Schema{
		r.Schema(reflect.TypeFor[ServerActed](), true, ""), r.Schema(reflect.TypeFor[ServerNotActed](), true, ""),
	}})
}
