package nodes

import (
	"context"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

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
	}, h.shown(s.Join))
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
	}, h.shown(s.Leave))
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

// session is a session of OpenStack for the caller of a request.
func (h handler) session(ctx context.Context) session {
	who, token := auth.Caller(ctx)
	return session{h.svc.cloud.As(token, who.ProjectID), who}
}

// action is what a request without a body does to a host.
type action func(ctx context.Context, cloud session, name string) (node, error)

// tagged serves an action whose answer has the host's ETag, and all servers of its drain.
func (h handler) tagged(do action) func(context.Context, *NodePath) (*nodeOutput, error) {
	return func(ctx context.Context, in *NodePath) (*nodeOutput, error) {
		return reply(do(ctx, h.session(ctx), in.Name))
	}
}

// shown serves an action whose answer has neither.
func (h handler) shown(do action) func(context.Context, *NodePath) (*httpx.Value[Node], error) {
	return func(ctx context.Context, in *NodePath) (*httpx.Value[Node], error) {
		found, err := do(ctx, h.session(ctx), in.Name)
		return &httpx.Value[Node]{Body: show(found, false)}, err
	}
}

type listInput struct {
	Status      []domain.NodeStatus `query:"status" minItems:"1" enum:"up,suspect,down,unknown" example:"[\"down\"]"`
	Schedulable string              `query:"schedulable" enum:"true,false" example:"true" doc:"Whether Nova uses it."`
	Zone        string              `query:"zone" maxLength:"255" example:"nova" doc:"Nova's availability zone."`
	Label       []string            `query:"label" minItems:"1" maxItems:"20" example:"[\"rack=r1\"]"`
	httpx.PageRequest
	Marker string `query:"marker" maxLength:"255" example:"compute-1.example.com" doc:"Last name of the page before."`
}

// Resolve implements huma.Resolver.
func (in *listInput) Resolve(huma.Context) (faults []error) {
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
	cloud := h.session(ctx)
	page, err := httpx.ReadPage(ctx, in.Limit, func(int) ([]node, error) {
		return h.svc.List(ctx, cloud, in.filter(), in.Marker)
	}, func(n node) string { return n.Name })
	if err == nil {
		err = h.svc.fill(ctx, cloud, page.Items)
	}
	shown := httpx.Each(page.Items, func(n node) Node { return show(n, false) })
	return &httpx.Value[NodePage]{Body: NodePage{shown, page.Next}}, err
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
	found, _, err := h.svc.get(ctx, h.session(ctx), in.Name)
	return reply(found, err)
}

type serversInput struct {
	NodePath
	httpx.PageRequest
	Marker string `query:"marker" maxLength:"64" example:"f3a1" doc:"The last id of the page before."`
}

func (h handler) servers(ctx context.Context, in *serversInput) (*httpx.Value[NodeServers], error) {
	page, err := httpx.ReadPage(ctx, in.Limit, func(int) ([]domain.Server, error) {
		return h.svc.Servers(ctx, h.session(ctx), in.Name, in.Marker)
	}, func(v domain.Server) string { return v.ID })
	shown := httpx.Each(page.Items, func(v domain.Server) NodeServer {
		return NodeServer{ID: v.ID, Name: v.Name, Status: v.Status, ProjectID: v.ProjectID}
	})
	return &httpx.Value[NodeServers]{Body: NodeServers{shown, page.Next}}, err
}

// changeRoutes declares what admins set of nodes, and how they delete one.
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
}

func (h handler) delete(ctx context.Context, in *NodePath) (*struct{}, error) {
	return nil, h.svc.Delete(ctx, h.session(ctx), in.Name)
}

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
			409: "Someone else has disabled the host, or it is drained.",
		}),
	}, h.tagged(h.svc.Uncordon))
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
	}, h.tagged(h.svc.CancelDrain))
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
	body := domain.Deref(in.Body)
	return reply(h.svc.Cordon(ctx, h.session(ctx), in.Name, body.Reason, body.Force))
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
	body := domain.Deref(in.Body)
	req := drainRequest{parallel: body.Parallel, isForced: body.Force, isDryRun: in.DryRun}
	req.serverTimeout, _ = fixed(body.ServerTimeout) // Resolve has refused what cannot be read
	found, err := reply(h.svc.Drain(ctx, h.session(ctx), in.Name, req))
	if err != nil {
		return httpx.Response{}, err
	}
	status := http.StatusAccepted
	if in.DryRun {
		status = http.StatusOK
	}
	return httpx.JSON(status, found.Body, "ETag", found.ETag)
}

// selfTestRoutes declares how admins test the isolation of reservable hosts.
func selfTestRoutes(api huma.API, h handler) {
	httpx.Register(api, huma.Operation{
		OperationID: "testNode", Method: http.MethodPost, Path: "/v1/nodes/{name}/self-test", Tags: tags,
		Middlewares: httpx.Before(auth.CanWrite), DefaultStatus: http.StatusOK,
		Summary: "Test whether reservable hosts are isolated",
		Responses: httpx.Answers(map[int]string{
			200: "The host, with what the test has found.",
			403: notChosen,
			404: notFound,
			409: "The host is not reservable, a lease has it, it is down, cordoned or full, no public image and " +
				"flavor fit it, or another self-test of it runs.",
		}),
	}, h.shown(h.svc.SelfTest))
}

// NodeLease is the lease that has a host, or gets it next.
type NodeLease struct {
	ID            uuid.UUID `json:"id"`
	ReservationID uuid.UUID `json:"reservation_id"`
	ProjectID     string    `json:"project_id" minLength:"1" doc:"Whose it is."`
	Start         time.Time `json:"start"`
	End           time.Time `json:"end" doc:"With the time for cleaning."`
}

func showLease(a *domain.Allocation) *NodeLease {
	if a == nil {
		return nil
	}
	return &NodeLease{
		ID: a.LeaseID, ReservationID: a.ReservationID, ProjectID: a.ProjectID, Start: a.From.UTC(), End: a.Until.UTC(),
	}
}

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
	made, err := h.svc.CreateToken(ctx, h.session(ctx), in.Name)
	return &httpx.Value[NodeToken]{Body: NodeToken{Token: made.Reveal()}}, err
}

func (h handler) revokeToken(ctx context.Context, in *NodePath) (*struct{}, error) {
	return nil, h.svc.RevokeToken(ctx, h.session(ctx), in.Name)
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
