package leases

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cloudfn/cloudfn/shared/auth"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

const (
	notFound  = "The project has no lease of this id."
	noTrustee = "The operator has set up no service account for trusts, or the cloud lacks a service."
	mayNot    = "The token is not scoped to a project, or its roles only allow reading."
	delegated = "Keystone lets the token make no trust, because it was delegated itself."
)

var tags = []string{"leases"}

// routes declares what the function serves.
func routes(api huma.API, s service) {
	h := handler{s}
	httpx.DescribeAs[domain.LeaseStatus, leaseStatus](api)
	reads, writes := httpx.Before(auth.CanRead), httpx.Before(auth.CanWrite)
	httpx.Register(api, huma.Operation{
		OperationID: "listLeases", Method: http.MethodGet, Path: "/v1/leases", Tags: tags, Middlewares: reads,
		Summary:   "List the project's leases",
		Responses: httpx.Answers(map[int]string{200: "A page of leases, the newest first."}),
	}, h.list)
	httpx.Serve[createInput, createOutput](api, httpx.Idempotent(huma.Operation{
		OperationID: "createLease", Method: http.MethodPost, Path: "/v1/leases", DefaultStatus: http.StatusCreated,
		Tags: tags, Middlewares: writes,
		Summary: "Reserve instances and hosts for a period",
		Responses: httpx.Answers(map[int]string{
			200: "With `dry_run=true`: the lease as it would be; nothing is stored. Or the lease that the same " +
				"request, with its `id`, had created before.",
			201: "The lease is stored, with its hosts.",
			403: mayNot + " Or the connection does not permit what the lease needs.",
			409: "An instance is in another lease then, the id is another lease's, the connection ends before the " +
				"lease, too few hosts are free, the project has as many leases as it may " +
				"have, or " + delegated,
			422: "Fewer hosts than that are reservable and match.",
			501: noTrustee,
		}),
	}), h.create)
	httpx.Register(api, huma.Operation{
		OperationID: "getLease", Method: http.MethodGet, Path: "/v1/leases/{id}", Tags: tags, Middlewares: reads,
		Summary:   "Show a lease",
		Responses: httpx.Answers(map[int]string{200: "The lease.", 404: notFound}),
	}, h.get)
	httpx.Register(api, huma.Operation{
		OperationID: "changeLease", Method: http.MethodPatch, Path: "/v1/leases/{id}", Tags: tags, Middlewares: writes,
		Summary: "Extend, shorten, move or rename a lease",
		Responses: httpx.Answers(map[int]string{
			200: "The lease as it is now.",
			403: mayNot,
			404: notFound,
			409: "The status of the lease does not allow the change, too few hosts are free, others change it at the " +
				"same time, or " + delegated,
			412: "",
			422: "Fewer hosts than that are reservable and match.",
			501: noTrustee,
		}),
	}, h.change)
	httpx.Serve[deleteInput, leaseOutput](api, huma.Operation{
		OperationID: "deleteLease", Method: http.MethodDelete, Path: "/v1/leases/{id}",
		DefaultStatus: http.StatusAccepted, Tags: tags, Middlewares: writes,
		Summary: "End a lease",
		Responses: httpx.Answers(map[int]string{
			200: "The lease has ended, or it was cancelled before its start.",
			202: "The lease is ending: run-leases does what its `on_end` says. One that has not started leaves its " +
				"instances as they were before it.",
			403: mayNot,
			404: notFound,
			409: "What was delegated to the lease does not permit this `on_end`.",
		}),
	}, h.delete)
	httpx.Register(api, huma.Operation{
		OperationID: "retryLease", Method: http.MethodPost, Path: "/v1/leases/{id}/retry", Tags: tags,
		Middlewares: writes, DefaultStatus: http.StatusAccepted,
		Summary: "Retry what has failed of a lease",
		Responses: httpx.Answers(map[int]string{
			202: "The lease starts or ends again.",
			403: mayNot,
			404: notFound,
			409: "The lease is neither ending nor in error, or " + delegated,
			501: noTrustee,
		}),
	}, h.retry)
	hostRoutes(api, h)
}

// LeasePath is the path of one. It is exported because huma ignores embedded structs that are not.
type LeasePath struct {
	ID httpx.ID `path:"id" example:"019b7c5e-7f60-7a88-b14f-6d0e5a4c3e55" doc:"The lease's id."`
}

type handler struct{ svc service }

type listInput struct {
	Status     []domain.LeaseStatus   `query:"status" minItems:"1" example:"[\"active\",\"error\"]"`
	Name       string                 `query:"name" maxLength:"255" example:"workshop" doc:"A part of the name."`
	Type       domain.ReservationType `query:"type" enum:"instance,host" example:"host"`
	InstanceID httpx.ID               `query:"instance_id" example:"019b7c5e-3a10-7c44-9d0b-2f6a1c0e9a11"`
	httpx.Page
	Marker httpx.ID `query:"marker" example:"019b7c5e-7f60-7a88-b14f-6d0e5a4c3e55" doc:"The last id before."`
}

func (h handler) list(ctx context.Context, in *listInput) (*httpx.Value[LeasePage], error) {
	found, hasMore, err := h.svc.List(ctx, auth.CallerOrNobody(ctx), domain.LeaseQuery{
		Statuses: in.Status, Name: in.Name, Type: in.Type, Instance: in.InstanceID.UUID,
		Limit: in.Limit, Marker: in.Marker.UUID,
	})
	if err != nil {
		return nil, err
	}
	page := LeasePage{}
	if page.Items, err = h.shown(ctx, found...); err != nil {
		return nil, err
	}
	if hasMore {
		page.Next = in.Next(found[len(found)-1].ID.String())
	}
	return &httpx.Value[LeasePage]{Body: page}, nil
}

type createInput struct {
	DryRun bool `query:"dry_run" default:"false" doc:"Only report whether the lease could be made, and how."`
	Body   CreateLease
}

type createOutput struct {
	Location string `header:"Location" doc:"Where the lease is." pattern:"^/v1/leases/[0-9a-f-]{36}$"`
	ETag     string `header:"ETag" doc:"The lease's version." pattern:"^\"[^\"]+\"$"`
	Body     Lease
}

func (h handler) create(ctx context.Context, in *createInput) (httpx.Response, error) {
	who, token := auth.Caller(ctx)
	if id, isKeyed, _ := domain.AttemptFrom(ctx); isKeyed && in.Body.ID == nil && !in.DryRun {
		in.Body.ID = &httpx.ID{UUID: id}
	}
	made, err := h.svc.Create(ctx, who, token, in.Body, in.DryRun)
	if err != nil {
		return httpx.Response{}, err
	}
	shown, err := h.shown(ctx, made)
	if err != nil {
		return httpx.Response{}, err
	}
	status := http.StatusCreated
	if in.DryRun || made.Repeated {
		status = http.StatusOK
	}
	resp, err := httpx.JSON(status, shown[0])
	if err == nil && !in.DryRun {
		resp.Header.Set("ETag", httpx.ETag(made.Version))
		resp.Header.Set("Location", "/v1/leases/"+made.ID.String())
	}
	return resp, err
}

type leaseOutput struct {
	ETag string `header:"ETag" doc:"The lease's version." pattern:"^\"[^\"]+\"$"`
	Body Lease
}

// reply is a lease with its ETag.
func (h handler) reply(ctx context.Context, d domain.Lease, err error) (*leaseOutput, error) {
	if err != nil {
		return nil, err
	}
	shown, err := h.shown(ctx, d)
	if err != nil {
		return nil, err
	}
	return &leaseOutput{httpx.ETag(d.Version), shown[0]}, nil
}

// shown are leases as their project sees them, with whether the cloud isolates reserved hosts.
func (h handler) shown(ctx context.Context, leases ...domain.Lease) ([]Lease, error) {
	out := make([]Lease, len(leases))
	var isolation domain.Isolation
	for n, d := range leases {
		if d.Hosts() && isolation.Result == "" {
			var err error
			if isolation, err = h.svc.Isolation(ctx); err != nil {
				return nil, err
			}
		}
		out[n] = show(d, isolation)
	}
	return out, nil
}

func (h handler) get(ctx context.Context, in *LeasePath) (*leaseOutput, error) {
	found, err := h.svc.Get(ctx, auth.CallerOrNobody(ctx), in.ID.UUID)
	return h.reply(ctx, found, err)
}

type changeInput struct {
	LeasePath
	IfMatch string `header:"If-Match" minLength:"1" example:"\"3\""`
	Body    ChangeLease
}

func (h handler) change(ctx context.Context, in *changeInput) (*leaseOutput, error) {
	who, token := auth.Caller(ctx)
	changed, err := h.svc.Change(ctx, who, token, in.ID.UUID, in.Body, httpx.IfMatch(httpx.RequestOf(ctx)))
	return h.reply(ctx, changed, err)
}

type deleteInput struct {
	LeasePath
	OnEnd domain.OnEnd `query:"on_end" enum:"none,shelve,stop,snapshot_delete,delete" example:"none" doc:"If another."`
}

func (h handler) delete(ctx context.Context, in *deleteInput) (httpx.Response, error) {
	ended, err := h.svc.Delete(ctx, auth.CallerOrNobody(ctx), in.ID.UUID, in.OnEnd)
	return h.replyEnded(ctx, ended, err)
}

// replyEnded is a lease that ends, or has ended.
func (h handler) replyEnded(ctx context.Context, ended domain.Lease, err error) (httpx.Response, error) {
	reply, err := h.reply(ctx, ended, err)
	if err != nil {
		return httpx.Response{}, err
	}
	status := http.StatusAccepted
	if !ended.Status.IsOpen() {
		status = http.StatusOK
	}
	resp, err := httpx.JSON(status, reply.Body)
	if err == nil {
		resp.Header.Set("ETag", reply.ETag)
	}
	return resp, err
}

func (h handler) retry(ctx context.Context, in *LeasePath) (*leaseOutput, error) {
	who, token := auth.Caller(ctx)
	retried, err := h.svc.Retry(ctx, who, token, in.ID.UUID)
	return h.reply(ctx, retried, err)
}
