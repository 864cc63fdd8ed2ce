package leases

import (
	"context"
	"net/http"
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
	notFound  = "The project has no lease of this id."
	noTrustee = "The operator has set up no service account for trusts, or the cloud lacks a service."
	mayNot    = "The token is not scoped to a project, or its roles only allow reading."
	delegated = "Keystone lets the token make no trust, because it was delegated itself."
)

var tags = []string{"leases"}

// routes declares what the function serves.
func routes(api huma.API, s service) {
	h := handler{s}
	httpx.Enum[domain.LeaseStatus](api, "LeaseStatus", domain.LeaseStatuses()...)
	reads, writes := httpx.Before(auth.CanRead), httpx.Before(auth.CanWrite)
	httpx.Register(api, huma.Operation{
		OperationID: "listLeases", Method: http.MethodGet, Path: "/v1/leases", Tags: tags, Middlewares: reads,
		Summary:   "List the project's leases",
		Responses: httpx.Answers(map[int]string{200: "A page of leases, the newest first."}),
	}, h.list)
	httpx.Serve[createInput, createOutput](api, httpx.Idempotent(huma.Operation{
		OperationID: "createLease", Method: http.MethodPost, Path: "/v1/leases", DefaultStatus: http.StatusCreated,
		Tags: tags, Middlewares: writes,
		Summary: "Reserve instances, their volumes and hosts for a period",
		Responses: httpx.Answers(map[int]string{
			200: "With `dry_run=true`: the lease as it would be; nothing is stored. Or the lease that the same " +
				"request, with its `id`, had created before.",
			201: "The lease is stored, with its hosts.",
			403: mayNot + " Or the connection does not permit what the lease needs.",
			409: "An instance or a volume is in another lease then, the id is another lease's, the connection ends " +
				"before the lease, too few hosts are free, the project has as many leases as it may " +
				"have, or " + delegated,
			422: "Fewer hosts than that are reservable and match.",
			501: noTrustee + " Or Nova is too old for volumes: they need 2.79.",
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

// caller is who sends a request. What they change with the context is recorded as theirs.
func (h handler) caller(ctx context.Context) (context.Context, caller) {
	who, token := auth.Caller(ctx)
	return domain.WithActor(ctx, domain.ActorOf(who, uuid.Nil)), caller{who, h.svc.cloud.As(token, who.ProjectID)}
}

type listInput struct {
	Status     []domain.LeaseStatus   `query:"status" minItems:"1" example:"[\"active\",\"error\"]"`
	Name       string                 `query:"name" maxLength:"255" example:"workshop" doc:"A part of the name."`
	Type       domain.ReservationType `query:"type" enum:"instance,host,volume" example:"host"`
	InstanceID httpx.ID               `query:"instance_id" example:"019b7c5e-3a10-7c44-9d0b-2f6a1c0e9a11"`
	httpx.PageRequest
	Marker httpx.ID `query:"marker" example:"019b7c5e-7f60-7a88-b14f-6d0e5a4c3e55" doc:"The last id before."`
}

func (h handler) list(ctx context.Context, in *listInput) (*httpx.Value[LeasePage], error) {
	page, err := httpx.ReadPage(ctx, in.Limit, func(limit int) ([]domain.Lease, error) {
		return h.svc.store.List(ctx, auth.CallerOrNone(ctx).ProjectID, domain.LeaseQuery{
			Statuses: in.Status, Name: in.Name, Type: in.Type, Instance: in.InstanceID.UUID,
			Limit: limit, Marker: in.Marker.UUID,
		})
	}, func(d domain.Lease) string { return d.ID.String() })
	if err != nil {
		return nil, err
	}
	shown, err := h.shown(ctx, page.Items...)
	return &httpx.Value[LeasePage]{Body: LeasePage{shown, page.Next}}, err
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
	ctx, who := h.caller(ctx)
	if id, isKeyed, _ := domain.AttemptFrom(ctx); isKeyed && in.Body.ID == nil && !in.DryRun {
		in.Body.ID = &httpx.ID{UUID: id}
	}
	made, err := h.svc.Create(ctx, who, in.Body, in.DryRun)
	if err != nil {
		return httpx.Response{}, err
	}
	shown, err := h.shown(ctx, made)
	if err != nil {
		return httpx.Response{}, err
	}
	if in.DryRun {
		return httpx.JSON(http.StatusOK, shown[0])
	}
	status := http.StatusCreated
	if made.Repeated {
		status = http.StatusOK
	}
	return httpx.JSON(status, shown[0],
		"ETag", httpx.ETag(made.Version), "Location", "/v1/leases/"+made.ID.String())
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
	found, err := h.svc.store.Get(ctx, auth.CallerOrNone(ctx).ProjectID, in.ID.UUID)
	return h.reply(ctx, found, err)
}

type changeInput struct {
	LeasePath
	httpx.MatchRequest
	Body ChangeLease
}

func (h handler) change(ctx context.Context, in *changeInput) (*leaseOutput, error) {
	ctx, who := h.caller(ctx)
	changed, err := h.svc.Change(ctx, who, in.ID.UUID, in.Body, httpx.IfMatch(ctx, "lease"))
	return h.reply(ctx, changed, err)
}

type deleteInput struct {
	LeasePath
	OnEnd domain.OnEnd `query:"on_end" enum:"none,shelve,stop,snapshot_delete,delete" example:"none" doc:"If another."`
}

func (h handler) delete(ctx context.Context, in *deleteInput) (httpx.Response, error) {
	ctx, who := h.caller(ctx)
	ended, err := h.svc.Delete(ctx, who, in.ID.UUID, in.OnEnd)
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
	return httpx.JSON(status, reply.Body, "ETag", reply.ETag)
}

func (h handler) retry(ctx context.Context, in *LeasePath) (*leaseOutput, error) {
	ctx, who := h.caller(ctx)
	retried, err := h.svc.Retry(ctx, who, in.ID.UUID)
	return h.reply(ctx, retried, err)
}

// hostRoutes declares the routes about hosts.
func hostRoutes(api huma.API, h handler) {
	reads := httpx.Before(auth.CanRead)
	httpx.Register(api, huma.Operation{
		OperationID: "findFreeHosts", Method: http.MethodGet, Path: "/v1/leases/availability", Tags: tags,
		Middlewares: reads, Summary: "Find when hosts are free",
		Responses: httpx.Answers(map[int]string{
			200: "Periods in which so many hosts are free for so long, the earliest first.",
			422: "Fewer hosts than that are reservable and match.",
		}),
	}, h.availability)
	httpx.Register(api, huma.Operation{
		OperationID: "listAllocations", Method: http.MethodGet, Path: "/v1/leases/allocations", Tags: tags,
		Middlewares: reads, Summary: "List which host is whose, and when",
		Responses: httpx.Answers(map[int]string{
			200: "A page of the hosts of all projects' reservations, by host and time.",
			403: "Nova lets the token list no compute services: that is for the cloud's admins.",
		}),
	}, h.allocations)
	httpx.Serve[LeasePath, leaseOutput](api, huma.Operation{
		OperationID: "releaseLease", Method: http.MethodPost, Path: "/v1/leases/{id}/release",
		DefaultStatus: http.StatusAccepted, Tags: tags, Middlewares: httpx.Before(auth.CanWrite),
		Summary: "End a lease, and leave its servers where they are",
		Responses: httpx.Answers(map[int]string{
			200: "The lease has ended, or it was cancelled before its start.",
			202: "The lease is ending: run-leases returns its hosts.",
			403: mayNot + " Or Nova lets the token list no compute services: that is for the cloud's admins.",
			404: "There is no lease of this id.",
		}),
	}, h.release)
}

func (h handler) release(ctx context.Context, in *LeasePath) (httpx.Response, error) {
	ctx, who := h.caller(ctx)
	released, err := h.svc.Release(ctx, who, in.ID.UUID)
	return h.replyEnded(ctx, released, err)
}

type availabilityInput struct {
	Hosts        int        `query:"hosts" minimum:"1" maximum:"1000" default:"1" example:"3" doc:"How many together."`
	VCPUs        int        `query:"vcpus" minimum:"0" default:"0" example:"32" doc:"What each must have, at least."`
	RAMMB        int        `query:"ram_mb" minimum:"0" default:"0" example:"65536" doc:"Memory of each, in MiB."`
	DiskGB       int        `query:"disk_gb" minimum:"0" default:"0" example:"100" doc:"Disk of each, in GiB."`
	Duration     string     `query:"duration" required:"true" example:"P2D" doc:"For how long: an ISO 8601 duration."`
	From         httpx.Time `query:"from" example:"2026-01-02T03:04:05Z" doc:"Not before this, nor before now."`
	Until        httpx.Time `query:"until" example:"2026-03-02T03:04:05Z" doc:"A year ahead by default."`
	Zone         string     `query:"zone" maxLength:"255" example:"nova" doc:"The availability zone of the hosts."`
	Region       string     `query:"region" maxLength:"255" example:"RegionOne" doc:"The region of the hosts."`
	Traits       []string   `query:"traits" minItems:"1" example:"[\"HW_CPU_X86_AVX2\"]" doc:"Of each host."`
	Capabilities []string   `query:"capabilities" minItems:"1" maxItems:"50" example:"[\"vcpus >= 32\"]"`
	Limit        int        `query:"limit" minimum:"1" maximum:"100" default:"10" doc:"The number of periods, at most."`
}

// Slots are periods in which hosts are free.
type Slots struct {
	Slots []Slot `json:"slots" maxItems:"100"`
}

// Slot is a period in which hosts are free.
type Slot struct {
	Start time.Time `json:"start"`
	End   time.Time `json:"end" doc:"Until when the hosts stay free: a lease may end earlier."`
	Hosts int       `json:"hosts" minimum:"1" doc:"How many are free during all of it."`
}

func (h handler) availability(ctx context.Context, in *availabilityInput) (*httpx.Value[Slots], error) {
	duration, err := domain.ParsePeriod(in.Duration)
	if err != nil {
		return nil, apperr.InvalidField("duration", err.Error())
	}
	found, err := h.svc.Availability(ctx, auth.CallerOrNone(ctx), domain.FreeQuery{
		Hosts: in.Hosts, Length: duration, From: in.From.Time, Until: in.Until.Time, Limit: in.Limit,
		Request: domain.HostRequest{
			Min: in.Hosts, Max: in.Hosts, VCPUs: in.VCPUs, RAMMB: in.RAMMB, DiskGB: in.DiskGB, Region: in.Region,
			Zone: in.Zone, Traits: in.Traits, Capabilities: in.Capabilities,
		},
	})
	if err != nil {
		return nil, err
	}
	shown := httpx.Each(found, func(s domain.FreeSlot) Slot {
		return Slot{Start: s.From.UTC(), End: s.Until.UTC(), Hosts: s.Hosts}
	})
	return &httpx.Value[Slots]{Body: Slots{shown}}, nil
}

type allocationsInput struct {
	From  httpx.Time `query:"from" example:"2026-01-02T03:04:05Z" doc:"Not over before this time. Now by default."`
	Until httpx.Time `query:"until" example:"2026-03-02T03:04:05Z" doc:"Begun before it. A year ahead by default."`
	httpx.PageRequest
	Marker string `query:"marker" maxLength:"400" example:"2026-01-02T03:04:05Z,d32225fb-a29c-4db1-9c17-2657322bda1f,a"`

	after domain.Allocation // of the marker
}

// Resolve implements huma.Resolver.
func (in *allocationsInput) Resolve(huma.Context) []error {
	if in.Marker == "" {
		return nil
	}
	start, rest, _ := strings.Cut(in.Marker, ",")
	id, host, _ := strings.Cut(rest, ",")
	from, badTime := time.Parse(time.RFC3339Nano, start)
	reservation, badID := uuid.Parse(id)
	if badTime != nil || badID != nil || host == "" || strings.Contains(host, "\x00") {
		return []error{apperr.InvalidField("marker", "is not that of a page of allocations: follow next")}
	}
	in.after = domain.Allocation{Node: host, From: from, ReservationID: reservation}
	return nil
}

// markerOf is the marker of the page after an allocation.
func markerOf(a domain.Allocation) string {
	return a.From.UTC().Format(time.RFC3339Nano) + "," + a.ReservationID.String() + "," + a.Node
}

// Allocations are a page of hosts of reservations.
type Allocations struct {
	Allocations []Allocation `json:"allocations" maxItems:"1000"`
	Next        *string      `json:"next" pattern:"^/v1/leases/allocations\\?" doc:"The next page. Null at the end."`
}

// Allocation is a host that a reservation has for a time.
type Allocation struct {
	Host          string    `json:"host" minLength:"1"`
	ProjectID     string    `json:"project_id" minLength:"1" doc:"Whose it is."`
	LeaseID       uuid.UUID `json:"lease_id"`
	ReservationID uuid.UUID `json:"reservation_id"`
	Start         time.Time `json:"start"`
	End           time.Time `json:"end" doc:"With the time for cleaning."`
	PreparedAt    time.Time `json:"prepared_at,omitzero" doc:"Since when only its servers land on the host."`
	ReleasedAt    time.Time `json:"released_at,omitzero" doc:"Since when the host is returned."`
}

func (h handler) allocations(ctx context.Context, in *allocationsInput) (*httpx.Value[Allocations], error) {
	who, token := auth.Caller(ctx)
	page, err := httpx.ReadPage(ctx, in.Limit, func(limit int) ([]domain.Allocation, error) {
		return h.svc.Allocations(ctx, who, token, domain.AllocationQuery{
			From: in.From.Time, Until: in.Until.Time, Limit: limit, After: in.after,
		})
	}, markerOf)
	shown := httpx.Each(page.Items, func(a domain.Allocation) Allocation {
		return Allocation{
			Host: a.Node, ProjectID: a.ProjectID, LeaseID: a.LeaseID, ReservationID: a.ReservationID,
			Start: a.From.UTC(), End: a.Until.UTC(), PreparedAt: a.PreparedAt, ReleasedAt: a.ReleasedAt,
		}
	})
	return &httpx.Value[Allocations]{Body: Allocations{shown, page.Next}}, err
}
