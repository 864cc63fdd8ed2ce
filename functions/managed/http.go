package managed

import (
	"context"
	"fmt"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/auth"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

const (
	notFound    = "The project has no such resource, or there is no such kind."
	noTrustee   = "The operator has set up no service account for trusts."
	mayNot      = "The token is not scoped to a project, or its roles only allow reading."
	mayNotMake  = mayNot + " Or the project's quota has no room for the servers (quota_exceeded)."
	delegated   = "Keystone lets the token make no trust, because it was delegated itself."
	unsupported = "OpenStack has no home for the kind, or the cloud lacks its service."
	isDeleting  = "The resource is being deleted, or " + delegated
)

var tags = []string{"managed"}

// routes declares what the function serves.
func routes(api huma.API, s service) {
	h := handler{s}
	httpx.Enum[domain.ManagedStatus](api, "ManagedStatus",
		"pending", "creating", "updating", "ready", "degraded", "error", "deleting")
	flavorRoutes(api, h)
	reads := httpx.Before(auth.CanRead)
	httpx.Register(api, huma.Operation{
		OperationID: "listProviders", Method: http.MethodGet, Path: "/v1/managed/providers", Tags: tags,
		Middlewares: reads, Summary: "List what serves which kinds of resources",
		Responses: httpx.Answers(map[int]string{200: "All providers, and whether the cloud has them."}),
	}, h.providers)
	httpx.Register(api, huma.Operation{
		OperationID: "listManaged", Method: http.MethodGet, Path: "/v1/managed", Tags: tags, Middlewares: reads,
		Summary:   "List the project's resources",
		Responses: httpx.Answers(map[int]string{200: "A page of resources, the oldest first."}),
	}, h.list)
	httpx.Register(api, huma.Operation{
		OperationID: "listManagedOfKind", Method: http.MethodGet, Path: "/v1/managed/{kind}", Tags: tags,
		Middlewares: reads, Summary: "List the project's resources of a kind",
		Responses: httpx.Answers(map[int]string{
			200: "A page of resources, the oldest first.", 404: "There is no such kind.", 422: unsupported,
		}),
	}, ofKind(h.listKind))
	httpx.Register(api, huma.Operation{
		OperationID: "getManaged", Method: http.MethodGet, Path: "/v1/managed/{kind}/{name}", Tags: tags,
		Middlewares: reads, Summary: "Show a resource",
		Responses: httpx.Answers(map[int]string{200: "The resource.", 404: notFound, 422: unsupported}),
	}, ofKind(h.get))
	writeRoutes(api, h)
	diffRoute(api, h)
	httpx.Register(api, huma.Operation{
		OperationID: "listManagedRevisions", Method: http.MethodGet, Path: "/v1/managed/{kind}/{name}/revisions",
		Tags: tags, Middlewares: reads, Summary: "List the revisions of a resource",
		Responses: httpx.Answers(map[int]string{200: "Those that are kept.", 404: notFound, 422: unsupported}),
	}, ofKind(h.revisions))
	httpx.Register(api, huma.Operation{
		OperationID: "getManagedRevision", Method: http.MethodGet,
		Path: "/v1/managed/{kind}/{name}/revisions/{number}", Tags: tags, Middlewares: reads,
		Summary: "Show a revision of a resource",
		Responses: httpx.Answers(map[int]string{
			200: "The revision.", 404: "The resource has no such revision any more.", 422: unsupported,
		}),
	}, ofKind(h.revision))
}

// writeRoutes declares the routes that change resources.
func writeRoutes(api huma.API, h handler) {
	writes := httpx.Before(auth.CanWrite)
	httpx.Serve[putInput, managedOutput](api, huma.Operation{
		OperationID: "putManaged", Method: http.MethodPut, Path: "/v1/managed/{kind}/{name}", Tags: tags,
		Middlewares: writes, Summary: "Declare a resource",
		Responses: httpx.Answers(map[int]string{
			200: "It is declared; it has a new revision if it differs. With `dry_run=true` nothing is stored.",
			201: "It is new.",
			403: mayNotMake, 404: "There is no such kind.", 409: isDeleting, 412: "", 422: unsupported, 501: noTrustee,
		}),
	}, ofKind(h.put))
	httpx.Register(api, huma.Operation{
		OperationID: "rollbackManaged", Method: http.MethodPost, Path: "/v1/managed/{kind}/{name}/rollback", Tags: tags,
		Middlewares: writes, Summary: "Declare an earlier revision again",
		Responses: httpx.Answers(map[int]string{
			200: "It has a new revision that repeats the earlier one.",
			403: mayNotMake, 404: "The resource has no such revision any more.", 409: isDeleting, 412: "",
			422: unsupported, 501: noTrustee,
		}),
	}, ofKind(h.rollback))
	httpx.Register(api, huma.Operation{
		OperationID: "deleteManaged", Method: http.MethodDelete, Path: "/v1/managed/{kind}/{name}", Tags: tags,
		Middlewares: writes, DefaultStatus: http.StatusAccepted, Summary: "Delete a resource",
		Responses: httpx.Answers(map[int]string{
			202: "reconcile-managed deletes what belongs to it, unless `orphan=true`, and then the resource.",
			403: mayNot, 404: notFound, 409: delegated, 412: "", 422: unsupported, 501: noTrustee,
		}),
	}, ofKind(h.delete))
}

// KindPath is the path of a kind. It is exported because huma ignores embedded structs that are not.
type KindPath struct {
	Kind string `path:"kind" maxLength:"63" example:"VirtualMachineDeployment" doc:"See GET /v1/managed/providers."`
}

// kind is the kind of the path. One that does not exist is not found, as the path is.
func (p KindPath) kind() (domain.Kind, error) {
	kind, err := kindOf(p.Kind)
	if apperr.CodeOf(err) == apperr.Invalid {
		refusal := *apperr.As(err)
		refusal.Code = apperr.NotFound
		return kind, &refusal
	}
	return kind, err
}

// ManagedPath is the path of one resource.
type ManagedPath struct { //nolint:revive // one Path would be of everything
	KindPath
	Name string `path:"name" maxLength:"63" example:"web" doc:"The resource's name."`
}

type handler struct{ svc service }

// ofKind gives a handler the kind of the path.
func ofKind[I interface{ kind() (domain.Kind, error) }, O any](
	handle func(context.Context, domain.Kind, I) (O, error),
) func(context.Context, I) (O, error) {
	return func(ctx context.Context, in I) (out O, err error) {
		kind, err := in.kind()
		if err != nil {
			return out, err
		}
		return handle(ctx, kind, in)
	}
}

type managedOutput struct {
	ETag *string `header:"ETag" doc:"The version of what is declared." pattern:"^\"[^\"]+\"$"`
	Body Managed
}

// reply is a resource with its ETag.
func reply(m domain.Managed, err error) (*managedOutput, error) {
	if err != nil {
		return nil, err
	}
	tag := httpx.ETag(m.Version)
	return &managedOutput{&tag, show(m)}, nil
}

func (h handler) get(ctx context.Context, kind domain.Kind, in *ManagedPath) (*managedOutput, error) {
	found, err := h.svc.store.Get(ctx, auth.CallerOrNone(ctx).ProjectID, kind, in.Name)
	out, err := reply(found, err)
	if err == nil {
		out.Body.Endpoints, err = h.svc.endpoints(ctx, found)
	}
	return out, err
}

type putInput struct {
	ManagedPath
	DryRun bool `query:"dry_run" default:"false" doc:"Only say what would be done: the answer has a plan."`
	httpx.MatchRequest
	IfNoneMatch string `header:"If-None-Match" minLength:"1" example:"*"`
	Body        PutManaged
}

// Resolve implements huma.Resolver.
func (in *putInput) Resolve(huma.Context) []error {
	return checkName(in.Name)
}

// checkServerNames rejects a new deployment whose servers' names would be too long for host names.
func checkServerNames(d declaration) error {
	if !d.kind.IsDeployment() || len(d.name) <= maxDeployment {
		return nil
	}
	return apperr.InvalidField("name", fmt.Sprintf("must have at most %d characters, because the names of its servers "+
		"end with a number", maxDeployment))
}

// acting is a context in which the caller is the actor of what is stored.
func acting(ctx context.Context, who domain.Identity) context.Context {
	return domain.WithActor(ctx, domain.ActorOf(who, uuid.Nil))
}

func (h handler) put(ctx context.Context, kind domain.Kind, in *putInput) (httpx.Response, error) {
	who, token := auth.Caller(ctx)
	done, err := h.svc.Put(acting(ctx, who), who, token, declaration{
		kind: kind, name: in.Name, in: in.Body, expected: conditionOf(httpx.RequestOf(ctx)), dryRun: in.DryRun,
	})
	switch {
	case err != nil:
		return httpx.Response{}, err
	case done.plan != nil:
		var tag string
		if done.Version != 0 { // for a PUT that is to do just that
			tag = httpx.ETag(done.Version)
		}
		return httpx.JSON(http.StatusOK, showPlan(done.Managed, *done.plan), "ETag", tag)
	}
	status := http.StatusOK
	if done.created {
		status = http.StatusCreated
	}
	return httpx.JSON(status, show(done.Managed), "ETag", httpx.ETag(done.Version))
}

type rollbackInput struct {
	ManagedPath
	httpx.MatchRequest
	Body Rollback
}

// Rollback is the body of POST .../rollback.
type Rollback struct {
	Revision int `json:"revision" minimum:"1" doc:"The one to declare again."`
}

func (h handler) rollback(ctx context.Context, kind domain.Kind, in *rollbackInput) (*managedOutput, error) {
	who, token := auth.Caller(ctx)
	d := declaration{kind: kind, name: in.Name, expected: conditionOf(httpx.RequestOf(ctx))}
	done, err := h.svc.Rollback(acting(ctx, who), who, token, d, in.Body.Revision)
	return reply(done.Managed, err)
}

type deleteInput struct {
	ManagedPath
	Orphan bool `query:"orphan" default:"false" doc:"Its servers and other objects stay, and are not managed."`
	httpx.MatchRequest
}

func (h handler) delete(ctx context.Context, kind domain.Kind, in *deleteInput) (*managedOutput, error) {
	who, token := auth.Caller(ctx)
	expected := conditionOf(httpx.RequestOf(ctx))
	return reply(h.svc.Delete(acting(ctx, who), who, token, declaration{
		kind: kind, name: in.Name, expected: expected, orphans: in.Orphan,
	}))
}

func (h handler) revisions(
	ctx context.Context, kind domain.Kind, in *ManagedPath,
) (*httpx.Value[ManagedRevisions], error) {
	_, found, err := h.svc.Revisions(ctx, auth.CallerOrNone(ctx), kind, in.Name)
	if err != nil {
		return nil, err
	}
	shown := httpx.Each(found, func(r domain.Revision) ManagedRevision { return showRevision(kind, r) })
	return &httpx.Value[ManagedRevisions]{Body: ManagedRevisions{shown}}, nil
}

type revisionInput struct {
	ManagedPath
	Number int `path:"number" minimum:"1" example:"2" doc:"The number of the revision."`
}

func (h handler) revision(
	ctx context.Context, kind domain.Kind, in *revisionInput,
) (*httpx.Value[ManagedRevision], error) {
	_, found, err := h.svc.Revision(ctx, auth.CallerOrNone(ctx), kind, in.Name, in.Number)
	if err != nil {
		return nil, err
	}
	return &httpx.Value[ManagedRevision]{Body: showRevision(kind, found)}, nil
}

type providersInput struct {
	Region string `query:"region" maxLength:"255" example:"RegionOne" doc:"Of the catalog; the function's by default."`
}

func (h handler) providers(ctx context.Context, in *providersInput) (*httpx.Value[ProviderList], error) {
	who, token := auth.Caller(ctx)
	found, err := h.svc.Providers(ctx, who, token, in.Region)
	if err != nil {
		return nil, err
	}
	shown := httpx.Each(found, func(p offer) Provider {
		return Provider{
			Name: p.Name, Description: p.Description, Kinds: p.Kinds, Driver: p.Driver, Available: p.Reason == "",
			Reason: p.Reason,
		}
	})
	return &httpx.Value[ProviderList]{Body: ProviderList{shown}}, nil
}

// ListInput is what every list of resources takes.
type ListInput struct {
	Label  []string               `query:"label" minItems:"1" maxItems:"20" example:"[\"app=shop\"]"`
	Name   string                 `query:"name" maxLength:"63" example:"web" doc:"A part of the name."`
	Status []domain.ManagedStatus `query:"status" minItems:"1" example:"[\"ready\",\"error\"]"`
	httpx.PageRequest
	Marker httpx.ID `query:"marker" example:"019b7c5e-8a70-7b99-825a-7e1f6b5d4f66" doc:"The last id before."`
}

type listInput struct {
	Kind string `query:"kind" maxLength:"63" example:"VirtualMachine" doc:"Only resources of this kind."`
	ListInput
}

func (h handler) list(ctx context.Context, in *listInput) (*httpx.Value[ManagedPage], error) {
	kind, err := kindFilter(in.Kind)
	if err != nil {
		return nil, err
	}
	return h.page(ctx, kind, &in.ListInput)
}

type listKindInput struct {
	KindPath
	ListInput
}

func (h handler) listKind(ctx context.Context, kind domain.Kind, in *listKindInput) (*httpx.Value[ManagedPage], error) {
	return h.page(ctx, kind, &in.ListInput)
}

func (h handler) page(ctx context.Context, kind domain.Kind, in *ListInput) (*httpx.Value[ManagedPage], error) {
	labels, without, err := selector(in.Label)
	if err != nil {
		return nil, err
	}
	page, err := httpx.ReadPage(ctx, in.Limit, func(limit int) ([]domain.Managed, error) {
		return h.svc.store.List(ctx, auth.CallerOrNone(ctx).ProjectID, domain.ManagedQuery{
			Kind: kind, Labels: labels, Without: without, Name: in.Name, Statuses: in.Status, Limit: limit,
			Marker: in.Marker.UUID,
		})
	}, func(m domain.Managed) string { return m.ID.String() })
	return &httpx.Value[ManagedPage]{Body: ManagedPage{httpx.Each(page.Items, show), page.Next}}, err
}

func diffRoute(api huma.API, h handler) {
	httpx.Register(api, huma.Operation{
		OperationID: "diffManaged", Method: http.MethodGet, Path: "/v1/managed/{kind}/{name}/diff", Tags: tags,
		Middlewares: httpx.Before(auth.CanRead), Summary: "Compare revisions of a resource, or one with what is real",
		Responses: httpx.Answers(map[int]string{
			200: "The fields that differ.", 422: unsupported,
			404: "The project has no such resource, or it has no such revision any more.",
		}),
	}, ofKind(h.diff))
}

type diffInput struct {
	ManagedPath
	From int `query:"from" minimum:"1" example:"1" doc:"A revision. The declared one by default."`
	To   int `query:"to" minimum:"1" example:"2" doc:"A revision. What is real by default."`
}

// ManagedDiff is how two revisions of a resource differ, or a revision and what is real.
type ManagedDiff struct { //nolint:revive // its name in the API
	From  int                 `json:"from" minimum:"1" doc:"The revision that is compared."`
	To    int                 `json:"to,omitempty" minimum:"1" doc:"The other revision. Absent: what is real."`
	Items []ManagedDifference `json:"differences"`
}

// ManagedDifference is a field that differs. A secret's values are not shown.
type ManagedDifference struct { //nolint:revive // its name in the API
	Member uuid.UUID `json:"member,omitzero" doc:"The id of the member that differs."`
	Path   string    `json:"path" minLength:"1"`
	From   any       `json:"from,omitempty" doc:"The value in the revision that is compared, if it has one."`
	To     any       `json:"to,omitempty" doc:"The value in the other revision, or the real one, if there is one."`
}

func (h handler) diff(ctx context.Context, kind domain.Kind, in *diffInput) (*httpx.Value[ManagedDiff], error) {
	from, found, err := h.svc.Diff(ctx, auth.CallerOrNone(ctx), kind, in.Name, in.From, in.To)
	if err != nil {
		return nil, err
	}
	out := ManagedDiff{From: from, To: in.To, Items: append([]ManagedDifference{}, found...)}
	return &httpx.Value[ManagedDiff]{Body: out}, nil
}
