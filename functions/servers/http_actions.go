package servers

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/agent"
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
	id, isKeyed, _ := domain.AttemptFrom(ctx)
	if isKeyed && in.Body.ID == nil {
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
	out := &actedOutput{accepted(done[0].Changed && !done[0].isRepeated), showActed(done[0])}
	if !isKeyed { // the answer is stored
		out.Body.AdminPassword = done[0].password.Reveal()
	}
	return out, done[0].err
}

type manyActedOutput struct {
	Status int
	Body   ServersActed
}

func (h handler) actOnMany(ctx context.Context, in *actOnManyInput) (*manyActedOutput, error) {
	req := newActionRequest(domain.Action(in.Body.Action), in.Body.Hard, in.Body.Force)
	req.args = domain.ActionArguments{
		Name: domain.Deref(in.Body.Name), Reason: domain.Deref(in.Body.Reason), Flavor: domain.Deref(in.Body.Flavor),
		Image: domain.Deref(in.Body.Image),
	}
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
		// The request as a whole did not fail, so no one else logs it.
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

// actionOfOne is an action on one server, and actionOfMany one on many.
type (
	actionOfOne  string
	actionOfMany string
)

// ofOneOnly are the actions that one request does to one server only.
var ofOneOnly = []domain.Action{domain.Rename, domain.Rebuild, domain.Deploy}

// describeActions lists the actions in the API.
func describeActions(api huma.API) {
	one := domain.Actions()
	many := slices.DeleteFunc(slices.Clone(one), func(name string) bool {
		return slices.Contains(ofOneOnly, domain.Action(name))
	})
	httpx.Enum[actionOfOne](api, "", one...)
	httpx.Enum[actionOfMany](api, "", many...)
	httpx.Enum[domain.Action](api, "ActionVerb", append(one, string(domain.Connect))...)
}

type actInput struct {
	ServerPath
	Body ServerAction
}

// ServerAction is the body of POST /v1/servers/{id}/actions. Its JSON is hashed to recognize a repeated request, also
// by a newer version: fields that are added need omitempty. agent.Spec checks what a deployment has.
type ServerAction struct {
	ID           *httpx.ID         `json:"id" required:"false" nullable:"true"`
	Action       actionOfOne       `json:"action"`
	Name         *string           `json:"name,omitempty" minLength:"1" maxLength:"255"`
	Reason       *string           `json:"reason,omitempty" minLength:"1" maxLength:"255"`
	Flavor       *string           `json:"flavor,omitempty" minLength:"1" maxLength:"255"`
	Hard         bool              `json:"hard" required:"false" default:"false" doc:"Of a reboot: power off and on."`
	Force        bool              `json:"force" required:"false" default:"false"`
	ConnectionID *httpx.ID         `json:"connection_id" required:"false" nullable:"true"`
	Image        *string           `json:"image" required:"false" nullable:"false"`
	Command      []string          `json:"command" required:"false"`
	Env          map[string]string `json:"env" required:"false"`
	Registry     *agent.Registry   `json:"registry" required:"false"`
	JoinToken    *domain.Secret    `json:"join_token" required:"false" nullable:"false" minLength:"1"`
	ServerImage  *httpx.ID         `json:"server_image" required:"false"`
	Confirm      bool              `json:"confirm_rebuild" required:"false"`
}

// Resolve implements huma.Resolver.
func (in *ServerAction) Resolve(huma.Context) []error {
	action := domain.Action(in.Action)
	faults := checkFields(action, map[string]bool{
		"name": in.Name != nil, "hard": in.Hard, "force": in.Force, "reason": in.Reason != nil,
		"flavor": in.Flavor != nil, "image": in.Image != nil, "command": in.Command != nil, "env": in.Env != nil,
		"registry": in.Registry != nil, "join_token": in.JoinToken != nil, "server_image": in.ServerImage != nil,
		"confirm_rebuild": in.Confirm,
	})
	faults = append(faults, checkTexts(action, in.Name, in.Reason, in.Flavor)...)
	if (action == domain.Deploy || action == domain.Rebuild) && !in.Confirm {
		faults = append(faults, apperr.InvalidField("confirm_rebuild",
			"must be true: the server's disk is recreated, and its content is lost", "true"))
	}
	faults = append(faults, checkImage(action, in.Image)...)
	if action == domain.Deploy {
		faults = append(faults, in.spec().Check()...)
	}
	return faults
}

// checkTexts checks what Nova and Glance store: the name of a server or of an image, and the reason of a lock. A resize
// needs a flavor.
func checkTexts(action domain.Action, name, reason, flavor *string) (faults []error) {
	var wrong error
	switch {
	case action == domain.Rename && name == nil:
		wrong = apperr.InvalidField("name", "is required for the action rename")
	case action == domain.Rename:
		wrong = domain.CheckName("name", *name, domain.MaxNameLength)
	default:
		wrong = domain.CheckStorable("name", domain.Deref(name))
	}
	if wrong != nil {
		faults = append(faults, wrong)
	}
	if action == domain.Resize && flavor == nil {
		faults = append(faults, apperr.InvalidField("flavor", "is required for the action resize"))
	}
	if err := domain.CheckStorable("flavor", domain.Deref(flavor)); err != nil {
		faults = append(faults, err)
	}
	if reason != nil {
		if err := domain.CheckText("reason", *reason, domain.MaxNameLength); err != nil {
			faults = append(faults, err)
		}
	}
	return faults
}

// checkImage checks the id or name of an image in Glance. The one of a deployment is checked with it.
func checkImage(action domain.Action, image *string) []error {
	if image == nil || action == domain.Deploy {
		return nil
	}
	if err := domain.CheckText("image", *image, domain.MaxNameLength); err != nil {
		return []error{err}
	}
	return nil
}

// fieldsOf are the actions that each field belongs to.
var fieldsOf = map[string][]domain.Action{
	"name": {domain.Snapshot, domain.Rename}, "hard": {domain.Reboot}, "force": {domain.Delete},
	"reason": {domain.Lock}, "flavor": {domain.Resize},
	"image":   {domain.Deploy, domain.Rebuild, domain.Rescue},
	"command": {domain.Deploy}, "env": {domain.Deploy}, "registry": {domain.Deploy},
	"join_token": {domain.Deploy}, "server_image": {domain.Deploy}, "confirm_rebuild": {domain.Deploy, domain.Rebuild},
}

// checkFields rejects fields that do not belong to the action.
func checkFields(action domain.Action, given map[string]bool) (faults []error) {
	for _, field := range slices.Sorted(maps.Keys(given)) {
		of := fieldsOf[field]
		if !given[field] || slices.Contains(of, action) {
			continue
		}
		names := make([]string, len(of))
		for n, action := range of {
			names[n] = string(action)
		}
		what := "the action "
		if len(of) > 1 {
			what = "the actions "
		}
		faults = append(faults, apperr.InvalidField(field,
			"can be combined with "+what+strings.Join(names, ", ")+" only"))
	}
	return faults
}

func newActionRequest(action domain.Action, hard, force bool) actionRequest {
	return actionRequest{ActionRequest: domain.ActionRequest{Action: action, Hard: hard}, force: force}
}

func (in *ServerAction) spec() agent.Spec {
	return agent.Spec{
		Image: domain.Deref(in.Image), Command: in.Command, Env: in.Env, Registry: in.Registry,
		JoinToken: domain.Deref(in.JoinToken),
	}
}

func (in *ServerAction) request() actionRequest {
	req := newActionRequest(domain.Action(in.Action), in.Hard, in.Force)
	req.key = in.key()
	req.args = domain.ActionArguments{
		Name: domain.Deref(in.Name), Reason: domain.Deref(in.Reason), Flavor: domain.Deref(in.Flavor),
	}
	if req.Action == domain.Rebuild || req.Action == domain.Rescue {
		req.args.Image = domain.Deref(in.Image)
	}
	if req.Action == domain.Deploy {
		req.deploy = &deploy{Spec: in.spec()}
		if in.ServerImage != nil {
			req.deploy.serverImage = in.ServerImage.String()
		}
	}
	return req
}

// key is the request's id, with its domain.RequestHash.
func (in *ServerAction) key() key {
	if in.ID == nil {
		return key{}
	}
	request := *in
	request.ID = nil
	var secrets []string
	if in.JoinToken != nil {
		secrets = append(secrets, "join_token", in.JoinToken.Reveal())
	}
	if in.Registry != nil {
		secrets = append(secrets, "password", in.Registry.Password.Reveal())
	}
	return key{id: in.ID.UUID, hash: domain.RequestHash(request, secrets...)}
}

type actOnManyInput struct{ Body ServersAction }

// ServersAction is the body of POST /v1/servers/actions.
type ServersAction struct { //nolint:revive // its name in the API
	Action       actionOfMany `json:"action"`
	Name         *string      `json:"name,omitempty" minLength:"1" maxLength:"255"`
	Reason       *string      `json:"reason,omitempty" minLength:"1" maxLength:"255"`
	Flavor       *string      `json:"flavor,omitempty" minLength:"1" maxLength:"255"`
	Image        *string      `json:"image,omitempty" minLength:"1" maxLength:"255"`
	Hard         bool         `json:"hard,omitempty" default:"false" doc:"Of a reboot: power off and on."`
	Force        bool         `json:"force,omitempty" default:"false"`
	ConnectionID *httpx.ID    `json:"connection_id,omitempty" nullable:"true"`
	IDs          []httpx.ID   `json:"ids" minItems:"1" maxItems:"100"`
}

// Resolve implements huma.Resolver.
func (in *ServersAction) Resolve(huma.Context) []error {
	action := domain.Action(in.Action)
	return append(checkFields(action, map[string]bool{
		"name": in.Name != nil, "hard": in.Hard, "force": in.Force, "reason": in.Reason != nil,
		"flavor": in.Flavor != nil, "image": in.Image != nil,
	}), append(checkTexts(action, in.Name, in.Reason, in.Flavor), checkImage(action, in.Image)...)...)
}

type actionInput struct {
	Action       httpx.ID `path:"action" example:"019b7c5e-9f00-7a11-8d22-5b0e6c7d8e9f" doc:"The action's id."`
	ConnectionID httpx.ID `query:"connection_id" required:"true" example:"019b7c5e-1f20-7a31-b5d4-0c7e2f9a6b13"`
}

// ServerActed is the result of an action on a server.
type ServerActed struct {
	ID       serverID             `json:"id" doc:"The id as it was given."`
	State    domain.InstanceState `json:"state"`
	Changed  bool                 `json:"changed"`
	ActionID *uuid.UUID           `json:"action_id,omitempty" doc:"The action that is done through a connection."`
	ImageID  string               `json:"image_id,omitempty" minLength:"1" doc:"Of snapshot: the image being made."`

	AdminPassword string `json:"admin_password,omitempty" minLength:"1"`
}

func showActed(o outcome) ServerActed {
	return ServerActed{ID: serverID(o.ID), State: o.State, Changed: o.Changed, ActionID: o.ActionID, ImageID: o.ImageID}
}

// ServerNotActed says why an action on one of many servers failed.
type ServerNotActed struct {
	ID    serverID      `json:"id" doc:"The id as it was given."`
	Error ServerRefusal `json:"error"`
}

// ServerRefusal is the error of an action on one of many servers.
type ServerRefusal struct {
	Code    apperr.Code   `json:"code"`
	Detail  string        `json:"detail" minLength:"1"`
	Allowed []actionOfOne `json:"allowed,omitempty"`
}

func showNotActed(o outcome, err error) ServerNotActed {
	e := apperr.As(err)
	out := ServerNotActed{serverID(o.ID), ServerRefusal{Code: e.Code, Detail: e.Message}}
	for _, f := range e.Fields {
		if f.Field == "action" {
			out.Error.Allowed = httpx.Each(f.Allowed, func(name string) actionOfOne { return actionOfOne(name) })
		}
	}
	return out
}

// ServersActed are the results of an action on many servers.
type ServersActed struct { //nolint:revive // its name in the API
	Results []ServerResult `json:"results" minItems:"1" maxItems:"100" doc:"In the order of the ids."`
}

// DelegatedAction is an action through a connection.
type DelegatedAction struct {
	ID           uuid.UUID           `json:"id"`
	Action       domain.Action       `json:"action"`
	InstanceID   uuid.UUID           `json:"instance_id"`
	ConnectionID uuid.UUID           `json:"connection_id"`
	Status       domain.ActionStatus `json:"status"`
	ImageID      string              `json:"image_id,omitempty" minLength:"1" doc:"Of a snapshot that is done."`
	Error        *domain.Problem     `json:"error,omitempty"`
	CreatedAt    time.Time           `json:"created_at"`
	UpdatedAt    time.Time           `json:"updated_at"`
}

func consoleRoutes(api huma.API, h handler) {
	const noConsole = "The server has no console, none of this type, or no host yet (Nova's message)."
	httpx.Register(api, operation("GET /v1/servers/{id}/console", "getServerConsole",
		"Show the end of a server's console log", answers{
			200: "The last lines.", 404: noOwnServer, 409: noConsole, 501: noDriver,
		}), h.consoleLog)
	httpx.Register(api, operation("POST /v1/servers/{id}/console", "openServerConsole",
		"Open a server's remote console", answers{
			200: "The console's URL.", 404: noOwnServer, 409: noConsole, 501: noDriver,
		}), h.remoteConsole)
}

const (
	noOwnServer = "The project has no server and no instance of this id."
	noDriver    = "The cloud's hypervisor has no such console, or Nova is older than its 2.6 (2.8 for `webmks`)."
)

type consoleLogInput struct {
	ServerPath
	Lines  int    `query:"lines" minimum:"1" maximum:"1000" default:"100" doc:"The number of lines, at most."`
	Region string `query:"region" minLength:"1" example:"RegionOne"`
}

// ServerConsoleLog is the end of a server's console log.
type ServerConsoleLog struct {
	Output string `json:"output" maxLength:"262144" doc:"The last lines, without control characters."`
}

func (h handler) consoleLog(ctx context.Context, in *consoleLogInput) (*httpx.Value[ServerConsoleLog], error) {
	a, err := h.access(ctx, uuid.Nil, in.Region)
	if err != nil {
		return nil, err
	}
	output, err := h.svc.ConsoleLog(ctx, a, in.ID.String(), in.Lines)
	return &httpx.Value[ServerConsoleLog]{Body: ServerConsoleLog{output}}, err
}

type remoteConsoleInput struct {
	ServerPath
	Body ServerConsoleRequest
}

// ServerConsoleRequest is the body of POST /v1/servers/{id}/console.
type ServerConsoleRequest struct {
	Type string `json:"type" enum:"novnc,spice-html5,rdp-html5,serial,webmks" doc:"Nova's type of the console."`
}

// ServerConsole is a server's remote console. Its URL is a secret.
type ServerConsole struct {
	Type string `json:"type" enum:"novnc,spice-html5,rdp-html5,serial,webmks"`
	URL  string `json:"url" format:"uri" doc:"Opens the console, for as long as Nova takes its token."`
}

func (h handler) remoteConsole(ctx context.Context, in *remoteConsoleInput) (*httpx.Value[ServerConsole], error) {
	a, err := h.access(ctx, uuid.Nil, "")
	if err != nil {
		return nil, err
	}
	at, err := h.svc.RemoteConsole(ctx, a, in.ID.String(), domain.ConsoleType(in.Body.Type))
	return &httpx.Value[ServerConsole]{Body: ServerConsole{Type: in.Body.Type, URL: at.Reveal()}}, err
}
