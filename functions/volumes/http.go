package volumes

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/auth"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

// routes declares what the function serves.
func routes(api huma.API, s service) {
	h := handler{s}
	httpx.Enum[volumeStatus](api, "", domain.VolumeStatuses()...)
	tags := []string{"volumes"}
	reads, writes := httpx.Before(auth.CanRead), httpx.Before(auth.CanWrite)
	httpx.Register(api, huma.Operation{
		OperationID: "listVolumes", Method: http.MethodGet, Path: "/v1/volumes", Tags: tags,
		Middlewares: reads, Summary: "List the project's volumes",
		Responses: httpx.Answers(map[int]string{200: "A page of volumes, the newest first.", 501: ""}),
	}, h.list)
	httpx.Register(api, httpx.Idempotent(huma.Operation{
		OperationID: "createVolume", Method: http.MethodPost, Path: "/v1/volumes", DefaultStatus: http.StatusAccepted,
		Tags: tags, Middlewares: writes,
		Summary: "Create a volume",
		Responses: httpx.Answers(map[int]string{
			202: "Cinder makes the volume.",
			404: "There is no such volume type, snapshot or volume (Cinder's message).",
			501: "",
		}),
	}), h.create)
	httpx.Register(api, huma.Operation{
		OperationID: "getVolume", Method: http.MethodGet, Path: "/v1/volumes/{id}", Tags: tags,
		Middlewares: reads, Summary: "Show a volume",
		Responses: httpx.Answers(map[int]string{200: "The volume.", 404: notFound, 501: ""}),
	}, h.get)
	httpx.Register(api, huma.Operation{
		OperationID: "deleteVolume", Method: http.MethodDelete, Path: "/v1/volumes/{id}", Tags: tags,
		Middlewares: writes, Summary: "Delete a volume",
		Responses: httpx.Answers(map[int]string{204: "Cinder deletes it.", 404: notFound, 501: ""}),
	}, h.delete)
}

const notFound = "The project has no volume of this id."

// volumeStatus is a status of Cinder's.
type volumeStatus string

// VolumePath is the path of one. It is exported because huma ignores embedded structs that are not.
type VolumePath struct {
	ID httpx.ID `path:"id" example:"5aa119a8-d25b-45a7-8d1b-88e127885635" doc:"The volume's id."`
}

// VolumeRequest is the body of POST /v1/volumes.
type VolumeRequest struct {
	Name        string    `json:"name,omitempty" maxLength:"255" doc:"What people call it."`
	Description string    `json:"description,omitempty" maxLength:"255"`
	SizeGB      int       `json:"size_gb,omitempty" minimum:"1" maximum:"2147483647"`
	Type        string    `json:"type,omitempty" minLength:"1" maxLength:"255"`
	Source      string    `json:"source,omitempty" enum:"image,snapshot,volume" doc:"What it is made from."`
	ID          *httpx.ID `json:"id,omitempty" doc:"The source's id."`
	Zone        string    `json:"zone,omitempty" minLength:"1" maxLength:"255"`
}

// Resolve implements huma.Resolver.
func (in *VolumeRequest) Resolve(huma.Context) (faults []error) {
	for _, field := range [][2]string{
		{"name", in.Name}, {"description", in.Description}, {"type", in.Type}, {"zone", in.Zone},
	} {
		if err := domain.CheckStorable(field[0], field[1]); err != nil {
			faults = append(faults, err)
		}
	}
	switch source := domain.VolumeSource(in.Source); {
	case source == "" && in.ID != nil:
		faults = append(faults,
			apperr.InvalidField("source", "must say what the id is of", "image", "snapshot", "volume"))
	case source != "" && in.ID == nil:
		faults = append(faults, apperr.InvalidField("id", "must be the id of the "+in.Source))
	case in.SizeGB == 0 && (source == "" || source == domain.FromImage):
		faults = append(faults,
			apperr.InvalidField("size_gb", "must be given, unless it is that of a snapshot or volume"))
	}
	return faults
}

func (in *VolumeRequest) request() domain.VolumeRequest {
	r := domain.VolumeRequest{
		Name: in.Name, Description: in.Description, SizeGB: in.SizeGB, Type: in.Type, Zone: in.Zone,
	}
	if in.ID == nil {
		return r
	}
	switch id := in.ID.String(); domain.VolumeSource(in.Source) {
	case domain.FromImage:
		r.ImageID = id
	case domain.FromSnapshot:
		r.SnapshotID = id
	case domain.FromVolume:
		r.VolumeID = id
	}
	return r
}

// Volume is a volume as Cinder shows it.
type Volume struct {
	ID          string    `json:"id" format:"uuid"`
	Name        string    `json:"name"`
	Description string    `json:"description"`
	Status      string    `json:"status" minLength:"1" doc:"Cinder's own, such as available or in-use."`
	SizeGB      int       `json:"size_gb" minimum:"0"`
	Type        string    `json:"type" doc:"The name of its type; empty if it has none."`
	Zone        string    `json:"zone" doc:"Its availability zone; empty until it has one."`
	Bootable    bool      `json:"bootable" doc:"Whether servers can boot from it."`
	Servers     []string  `json:"servers" doc:"The ids of the servers that it is attached to."`
	CreatedAt   time.Time `json:"created_at"`
	UpdatedAt   time.Time `json:"updated_at"`
}

// VolumePage is a page of volumes.
type VolumePage struct {
	Volumes []Volume `json:"volumes" maxItems:"1000"`
	Next    *string  `json:"next" pattern:"^/v1/volumes\\?" doc:"The URL of the next page, without a host, or null."`
}

func show(v domain.Volume) Volume {
	servers := v.Servers
	if servers == nil {
		servers = []string{}
	}
	return Volume{
		ID: v.ID, Name: v.Name, Description: v.Description, Status: v.Status, SizeGB: v.SizeGB, Type: v.Type,
		Zone: v.Zone, Bootable: v.IsBootable, Servers: servers, CreatedAt: v.CreatedAt, UpdatedAt: v.UpdatedAt,
	}
}

type handler struct{ svc service }

type listInput struct {
	httpx.PageRequest
	Status volumeStatus `query:"status" example:"available" doc:"Only volumes of this status of Cinder's."`
	Name   string       `query:"name" example:"data" doc:"Only volumes whose name contains this text."`
	Marker httpx.ID     `query:"marker" example:"5aa119a8-d25b-45a7-8d1b-88e127885635" doc:"The last id before."`
}

func (h handler) list(ctx context.Context, in *listInput) (*httpx.Value[VolumePage], error) {
	who, token := auth.Caller(ctx)
	q := domain.VolumeQuery{Status: string(in.Status), Name: in.Name, Limit: in.Limit}
	if in.Marker.UUID != uuid.Nil {
		q.Marker = in.Marker.String()
	}
	found, marker, err := h.svc.List(ctx, who, token, q)
	out := VolumePage{Volumes: httpx.Each(found, show)}
	if marker != "" {
		out.Next = httpx.NextPage(ctx, marker)
	}
	return &httpx.Value[VolumePage]{Body: out}, err
}

type createInput struct{ Body VolumeRequest }

type createOutput struct {
	Location string `header:"Location" doc:"Where the volume is." pattern:"^/v1/volumes/[0-9a-f-]{36}$"`
	Body     Volume
}

func (h handler) create(ctx context.Context, in *createInput) (*createOutput, error) {
	who, token := auth.Caller(ctx)
	made, err := h.svc.Create(ctx, who, token, in.Body.request())
	if err != nil {
		return nil, err
	}
	return &createOutput{"/v1/volumes/" + made.ID, show(made)}, nil
}

func (h handler) get(ctx context.Context, in *VolumePath) (*httpx.Value[Volume], error) {
	who, token := auth.Caller(ctx)
	found, err := h.svc.as(who, token).OwnVolume(ctx, in.ID.String(), who.ProjectID)
	return &httpx.Value[Volume]{Body: show(found)}, err
}

func (h handler) delete(ctx context.Context, in *VolumePath) (*struct{}, error) {
	who, token := auth.Caller(ctx)
	return nil, h.svc.Delete(ctx, who, token, in.ID.String())
}
