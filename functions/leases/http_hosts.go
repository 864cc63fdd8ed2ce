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
	who, token := auth.Caller(ctx)
	released, err := h.svc.Release(ctx, who, token, in.ID.UUID)
	return h.replyEnded(ctx, released, err)
}

type availabilityInput struct {
	Hosts        int        `query:"hosts" minimum:"1" maximum:"1000" default:"1" example:"3" doc:"How many at once."`
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
	found, err := h.svc.Availability(ctx, auth.CallerOrNobody(ctx), domain.FreeQuery{
		Hosts: in.Hosts, Length: duration, From: in.From.Time, Until: in.Until.Time, Limit: in.Limit,
		Want: domain.HostWant{
			Min: in.Hosts, Max: in.Hosts, VCPUs: in.VCPUs, RAMMB: in.RAMMB, DiskGB: in.DiskGB, Region: in.Region,
			Zone: in.Zone, Traits: in.Traits, Capabilities: in.Capabilities,
		},
	})
	if err != nil {
		return nil, err
	}
	slots := Slots{Slots: make([]Slot, len(found))}
	for n, slot := range found {
		slots.Slots[n] = Slot{Start: slot.From.UTC(), End: slot.Until.UTC(), Hosts: slot.Hosts}
	}
	return &httpx.Value[Slots]{Body: slots}, nil
}

type allocationsInput struct {
	From  httpx.Time `query:"from" example:"2026-01-02T03:04:05Z" doc:"Not over before this time. Now by default."`
	Until httpx.Time `query:"until" example:"2026-03-02T03:04:05Z" doc:"Begun before it. A year ahead by default."`
	httpx.Page
	Marker string `query:"marker" maxLength:"400" example:"2026-01-02T03:04:05Z,d32225fb-a29c-4db1-9c17-2657322bda1f,a"`

	after domain.Allocation // of the marker
}

// Resolve implements huma.Resolver.
func (in *allocationsInput) Resolve(ctx huma.Context) []error {
	_ = in.Page.Resolve(ctx) // this method hides it
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
	found, hasMore, err := h.svc.Allocations(ctx, who, token, domain.AllocationQuery{
		From: in.From.Time, Until: in.Until.Time, Limit: in.Limit, After: in.after,
	})
	if err != nil {
		return nil, err
	}
	out := Allocations{Allocations: make([]Allocation, len(found))}
	for n, a := range found {
		out.Allocations[n] = Allocation{
			Host: a.Node, ProjectID: a.ProjectID, LeaseID: a.LeaseID, ReservationID: a.ReservationID,
			Start: a.From.UTC(), End: a.Until.UTC(), PreparedAt: a.PreparedAt, ReleasedAt: a.ReleasedAt,
		}
	}
	if hasMore {
		out.Next = in.Next(markerOf(found[len(found)-1]))
	}
	return &httpx.Value[Allocations]{Body: out}, nil
}
