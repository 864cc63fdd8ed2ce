package nodes

import (
	"context"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/auth"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

const (
	notFound  = "The cloud has no host of compute of this name."
	notShown  = "Nova does not show the token the cloud's hosts: by default it does to the cloud's admins."
	notChosen = "Nova does not let the token change aggregates: by default only the cloud's admins may."
	notMine   = "Nova does not let the token change compute services: by default only the cloud's admins may."
)

var tags = []string{"nodes"}

// routes declares what the function serves.
func routes(api huma.API, s service) {
	h := handler{s}
	reads, writes := httpx.Before(auth.CanRead), httpx.Before(auth.CanWrite)
	httpx.Register(api, huma.Operation{
		OperationID: "listNodes", Method: http.MethodGet, Path: "/v1/nodes", Tags: tags, Middlewares: reads,
		Summary:   "List the cloud's hosts of compute",
		Responses: httpx.Answers(map[int]string{200: "A page of hosts, by name.", 403: notShown}),
	}, h.list)
	httpx.Register(api, huma.Operation{
		OperationID: "getNode", Method: http.MethodGet, Path: "/v1/nodes/{name}", Tags: tags, Middlewares: reads,
		Summary:   "Show a host of compute",
		Responses: httpx.Answers(map[int]string{200: "The host.", 403: notShown, 404: notFound}),
	}, h.get)
	httpx.Register(api, huma.Operation{
		OperationID: "listNodeServers", Method: http.MethodGet, Path: "/v1/nodes/{name}/servers", Tags: tags,
		Middlewares: reads, Summary: "List the servers on a host",
		Responses: httpx.Answers(map[int]string{
			200: "A page of the servers of all projects, by id.", 403: notShown, 404: notFound,
		}),
	}, h.servers)
	httpx.Register(api, huma.Operation{
		OperationID: "makeNodeReservable", Method: http.MethodPost, Path: "/v1/nodes/{name}/reservable", Tags: tags,
		Middlewares: writes, DefaultStatus: http.StatusAccepted,
		Summary: "Let a host be reserved",
		Responses: httpx.Answers(map[int]string{
			202: "The host joins the reservable ones, or is one already.",
			403: notChosen,
			404: notFound,
			409: "Servers run on the host, another aggregate isolates it, or it has not exactly one hypervisor.",
		}),
	}, h.reservable)
	httpx.Register(api, huma.Operation{
		OperationID: "makeNodeUnreservable", Method: http.MethodPost, Path: "/v1/nodes/{name}/unreservable", Tags: tags,
		Middlewares: writes, DefaultStatus: http.StatusAccepted,
		Summary: "Open a reservable host to all servers again",
		Responses: httpx.Answers(map[int]string{
			202: "The host leaves the reservable hosts, or is not reservable.",
			403: notChosen,
			404: notFound,
			409: "Reservations have the host, now or later.",
		}),
	}, h.unreservable)
	selfTestRoutes(api, h)
	changeRoutes(api, h)
	tokenRoutes(api, h)
	drainRoutes(api, h)
}

// NodePath is the path of one. It is exported because huma ignores embedded structs that are not.
type NodePath struct {
	Name string `path:"name" example:"compute-1.example.com" doc:"Nova's name of the host."`
}

type handler struct{ svc service }

type listInput struct {
	Status      []domain.NodeStatus `query:"status" minItems:"1" enum:"up,suspect,down,unknown" example:"[\"down\"]"`
	Schedulable string              `query:"schedulable" enum:"true,false" example:"true" doc:"Whether Nova uses it."`
	Zone        string              `query:"zone" maxLength:"255" example:"nova" doc:"Nova's availability zone."`
	Label       []string            `query:"label" minItems:"1" maxItems:"20" example:"[\"rack=r1\"]"`
	httpx.Page
	Marker string `query:"marker" maxLength:"255" example:"compute-1.example.com" doc:"Last name of the page before."`
}

// Resolve implements huma.Resolver.
func (in *listInput) Resolve(ctx huma.Context) []error {
	faults := in.Page.Resolve(ctx)
	for _, label := range in.Label {
		if key, _, ok := strings.Cut(label, "="); !ok || key == "" {
			faults = append(faults, apperr.InvalidField("label", "must be a label and its value, such as rack=r1"))
		}
	}
	return faults
}

func (in *listInput) filter() filter {
	f := filter{statuses: in.Status, zone: in.Zone, labels: map[string]string{}}
	for _, label := range in.Label {
		key, value, _ := strings.Cut(label, "=")
		f.labels[key] = value
	}
	if in.Schedulable != "" {
		is := in.Schedulable == "true"
		f.schedulable = &is
	}
	return f
}

func (h handler) list(ctx context.Context, in *listInput) (*httpx.Value[NodePage], error) {
	who, token := auth.Caller(ctx)
	found, hasMore, err := h.svc.List(ctx, who, token, in.filter(), in.Limit, in.Marker)
	if err != nil {
		return nil, err
	}
	page := NodePage{Items: make([]Node, len(found))}
	for i, n := range found {
		page.Items[i] = show(n, false)
	}
	if hasMore {
		page.Next = in.Next(found[len(found)-1].Name)
	}
	return &httpx.Value[NodePage]{Body: page}, nil
}

type nodeOutput struct {
	ETag string `header:"ETag" doc:"The version of what is set of the node." pattern:"^\"[^\"]+\"$"`
	Body Node
}

// reply is a node with its ETag.
func reply(n node, err error) (*nodeOutput, error) {
	if err != nil {
		return nil, err
	}
	return &nodeOutput{httpx.ETag(n.stored.Version), show(n, true)}, nil
}

func (h handler) get(ctx context.Context, in *NodePath) (*nodeOutput, error) {
	who, token := auth.Caller(ctx)
	return reply(h.svc.Get(ctx, who, token, in.Name))
}

type serversInput struct {
	NodePath
	httpx.Page
	Marker string `query:"marker" maxLength:"64" example:"f3a1" doc:"The last id of the page before."`
}

func (h handler) servers(ctx context.Context, in *serversInput) (*httpx.Value[NodeServers], error) {
	who, token := auth.Caller(ctx)
	found, hasMore, err := h.svc.Servers(ctx, who, token, in.Name, in.Limit, in.Marker)
	if err != nil {
		return nil, err
	}
	page := NodeServers{Items: make([]NodeServer, len(found))}
	for i, v := range found {
		page.Items[i] = NodeServer{ID: v.ID, Name: v.Name, Status: v.Status, ProjectID: v.ProjectID}
	}
	if hasMore {
		page.Next = in.Next(found[len(found)-1].ID)
	}
	return &httpx.Value[NodeServers]{Body: page}, nil
}

func (h handler) reservable(ctx context.Context, in *NodePath) (*httpx.Value[Node], error) {
	who, token := auth.Caller(ctx)
	found, err := h.svc.Join(ctx, who, token, in.Name)
	return &httpx.Value[Node]{Body: show(found, false)}, err
}

func (h handler) unreservable(ctx context.Context, in *NodePath) (*httpx.Value[Node], error) {
	who, token := auth.Caller(ctx)
	found, err := h.svc.Leave(ctx, who, token, in.Name)
	return &httpx.Value[Node]{Body: show(found, false)}, err
}
