package servers

import (
	"cmp"
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

func volumeRoutes(api huma.API, h handler) {
	const older = "The cloud is older than Nova's 2.79, or has no Cinder."
	httpx.Register(api, operation("GET /v1/servers/{id}/volumes", "listServerVolumes",
		"List a server's volumes", answers{
			200: "All volumes of the server.", 404: noOwnServer, 501: older,
		}), h.volumes)
	attach := operation("POST /v1/servers/{id}/volumes", "attachVolume", "Attach a volume to a server", answers{
		201: "Nova attaches the volume.",
		404: "The project has no such server, or no such volume.",
		409: "The volume is attached to another server, or the server's state does not allow it (Nova's message).",
		501: older,
	})
	attach.DefaultStatus = http.StatusCreated
	attach.Responses["200"] = answer[ServerVolume](api, "The server has the volume already.")
	httpx.Register(api, attach, h.attach)
	httpx.Register(api, operation("DELETE /v1/servers/{id}/volumes/{volume_id}", "detachVolume",
		"Detach a volume from a server", answers{
			204: "Nova detaches the volume, or does so already.",
			404: "The project has no such server, or the server does not have the volume.",
			409: "The server's state does not allow it (Nova's message).",
			501: older,
		}), h.detach)
}

// ServerVolume is a volume of a server.
type ServerVolume struct {
	ID                  string `json:"id" format:"uuid"`
	Name                string `json:"name"`
	SizeGB              int    `json:"size_gb" minimum:"0"`
	Status              string `json:"status" minLength:"1" doc:"Cinder's own; unknown if Cinder does not show it."`
	Device              string `json:"device" doc:"Such as /dev/vdb, if the guest follows Nova; empty if unknown."`
	DeleteOnTermination bool   `json:"delete_on_termination" doc:"Whether it is deleted with the server."`
	Boot                bool   `json:"boot" doc:"Whether the server boots from it."`
}

// ServerVolumes are all volumes of a server.
type ServerVolumes struct {
	Volumes []ServerVolume `json:"volumes"`
}

// VolumeAttach is the body of POST /v1/servers/{id}/volumes.
type VolumeAttach struct {
	VolumeID            httpx.ID `json:"volume_id"`
	DeleteOnTermination bool     `json:"delete_on_termination,omitempty" default:"false"`
}

func showVolume(a domain.VolumeAttachment, v domain.Volume, isBoot bool) ServerVolume {
	return ServerVolume{
		ID: a.VolumeID, Name: v.Name, SizeGB: v.SizeGB, Status: cmp.Or(v.Status, "unknown"), Device: a.Device,
		DeleteOnTermination: a.DeleteOnTermination, Boot: isBoot,
	}
}

func (h handler) volumes(ctx context.Context, in *ServerPath) (*httpx.Value[ServerVolumes], error) {
	a, err := h.access(ctx, uuid.Nil, "")
	if err != nil {
		return nil, err
	}
	found, err := h.svc.Volumes(ctx, a, in.ID.String())
	return &httpx.Value[ServerVolumes]{Body: ServerVolumes{found}}, err
}

type attachInput struct {
	ServerPath
	Body VolumeAttach
}

type attachOutput struct {
	Status int
	Body   ServerVolume
}

func (h handler) attach(ctx context.Context, in *attachInput) (*attachOutput, error) {
	a, err := h.access(ctx, uuid.Nil, "")
	if err != nil {
		return nil, err
	}
	volume, isNew, err := h.svc.Attach(ctx, a, in.ID.String(), in.Body.VolumeID.String(), in.Body.DeleteOnTermination)
	if isNew {
		return &attachOutput{http.StatusCreated, volume}, err
	}
	return &attachOutput{http.StatusOK, volume}, err
}

type detachInput struct {
	ServerPath
	VolumeID httpx.ID `path:"volume_id" example:"5aa119a8-d25b-45a7-8d1b-88e127885635" doc:"The volume's id."`
}

func (h handler) detach(ctx context.Context, in *detachInput) (*struct{}, error) {
	a, err := h.access(ctx, uuid.Nil, "")
	if err != nil {
		return nil, err
	}
	return nil, h.svc.Detach(ctx, a, in.ID.String(), in.VolumeID.String())
}
