package servers

import (
	"context"
	"encoding/json"
	"reflect"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

func changeRoutes(api huma.API, h handler) {
	httpx.Register(api, operation("PATCH /v1/servers/{id}", "changeServer",
		"Change a server's name, description, metadata and tags, or allow its reuse", answers{
			200: "The server as it is then.", 403: notPermitted,
			404: "The project has no such server; or, for `reusable`, none that is managed through a connection.",
			409: "The server's state does not allow it, or it is locked (Nova's message); or, for `reusable`, it is " +
				"not managed through a connection.",
			501: "",
		}), h.change)
}

type changeInput struct {
	ServerPath
	Body ServerChange
}

// ServerChange is the body of PATCH /v1/servers/{id}, a JSON merge patch: what is absent stays.
type ServerChange struct {
	Name        *string             `json:"name,omitempty" minLength:"1" maxLength:"255"`
	Description httpx.Patch[string] `json:"description,omitzero" nullable:"true" maxLength:"255"`
	Metadata    metadataPatch       `json:"metadata,omitempty"`
	Tags        []string            `json:"tags,omitzero" required:"false" maxItems:"50"`
	Reusable    *bool               `json:"reusable,omitempty" doc:"Whether orders with reuse may use the server."`
}

// metadataPatch are items to set, or to remove by null.
type metadataPatch map[string]*string

// Schema implements huma.SchemaProvider.
func (metadataPatch) Schema(huma.Registry) *huma.Schema {
	maxLength, maxProperties := domain.MaxNameLength, domain.MaxMetadata
	value := &huma.Schema{Type: huma.TypeString, Nullable: true, MaxLength: &maxLength}
	value.PrecomputeMessages()
	return &huma.Schema{Type: huma.TypeObject, MaxProperties: &maxProperties, AdditionalProperties: value}
}

// Resolve implements huma.Resolver.
func (in *changeInput) Resolve(ctx huma.Context) (faults []error) {
	faults = httpx.CheckNulls(ctx, "description")
	c := in.Body.change()
	for _, fault := range c.Check() {
		faults = append(faults, apperr.InvalidField(fault.Field, fault.Detail))
	}
	isChange := c.Name != nil || c.Description != nil || c.Metadata != nil || c.Tags != nil
	switch {
	case len(faults) > 0:
	case isChange && in.Body.Reusable != nil:
		faults = append(faults, apperr.InvalidField("reusable", "cannot be combined with other fields"))
	case !isChange && in.Body.Reusable == nil:
		faults = append(faults, apperr.InvalidField("name",
			"must be given, or description, metadata, tags or reusable"))
	}
	return faults
}

func (b *ServerChange) change() domain.ServerChange {
	c := domain.ServerChange{Name: b.Name, Metadata: b.Metadata, Tags: b.Tags}
	if !b.Description.IsZero() {
		text := b.Description.Apply("")
		c.Description = &text
	}
	return c
}

// ServerChanged is a server whose mark was changed.
type ServerChanged struct {
	ID           uuid.UUID            `json:"id" doc:"The instance's id."`
	ServerID     serverID             `json:"server_id"`
	State        domain.InstanceState `json:"state"`
	Origin       string               `json:"origin" enum:"launched,connected"`
	ConnectionID uuid.UUID            `json:"connection_id" doc:"The connection that manages it."`
	Reusable     bool                 `json:"reusable"`
}

// ServerChangeResult is a Server, or a ServerChanged for a change of reusable.
type ServerChangeResult struct{ value any }

// MarshalJSON implements json.Marshaler.
func (r ServerChangeResult) MarshalJSON() ([]byte, error) { return json.Marshal(r.value) }

// Schema implements huma.SchemaProvider.
func (ServerChangeResult) Schema(r huma.Registry) *huma.Schema {
	return httpx.SharedSchema(r, "ServerChangeResult", huma.Schema{OneOf: []*huma.Schema{
		r.Schema(reflect.TypeFor[domain.Server](), true, ""), r.Schema(reflect.TypeFor[ServerChanged](), true, ""),
	}})
}

func (h handler) change(ctx context.Context, in *changeInput) (*httpx.Value[ServerChangeResult], error) {
	a, err := h.access(ctx, uuid.Nil, "")
	if err != nil {
		return nil, err
	}
	if in.Body.Reusable == nil {
		server, err := h.svc.Change(ctx, a, in.ID.String(), in.Body.change())
		return &httpx.Value[ServerChangeResult]{Body: ServerChangeResult{server}}, err
	}
	i, err := h.svc.MarkReusable(ctx, a, in.ID.String(), *in.Body.Reusable)
	return &httpx.Value[ServerChangeResult]{Body: ServerChangeResult{ServerChanged{
		ID: i.ID, ServerID: serverID(i.ServerID), State: i.State, Origin: i.Origin, ConnectionID: i.ConnectionID,
		Reusable: *in.Body.Reusable,
	}}}, err
}
