package servers

import (
	"encoding/json"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

// ServerPath identifies a server. It is exported because huma ignores unexported embedded structs.
type ServerPath struct {
	ID httpx.ID `path:"id" example:"4f8052c0-49f2-4b75-a508-5c4454e37731" doc:"The id of the server or its instance."`
}

type listInput struct {
	httpx.Page
	Status       serverStatus `query:"status" example:"ACTIVE" doc:"Only servers of this Nova status."`
	Name         string       `query:"name" example:"web" doc:"Only servers whose name contains this text."`
	Tracked      bool         `query:"tracked" example:"true" doc:"Only tracked servers, or only the others."`
	Marker       httpx.ID     `query:"marker" example:"4f8052c0-49f2-4b75-a508-5c4454e37731"`
	ConnectionID httpx.ID     `query:"connection_id" example:"019b7c5e-1f20-7a31-b5d4-0c7e2f9a6b13"`
	Region       string       `query:"region" minLength:"1" example:"RegionOne"`

	tracked *bool // nil = both
}

// Resolve implements huma.Resolver.
func (in *listInput) Resolve(ctx huma.Context) (faults []error) {
	faults = in.Page.Resolve(ctx)
	if ctx.Query("tracked") != "" {
		in.tracked = &in.Tracked
	}
	if in.ConnectionID.UUID != uuid.Nil {
		for _, name := range []string{"status", "name", "tracked", "region"} {
			if ctx.Query(name) != "" {
				faults = append(faults, apperr.InvalidField(name, notWithConnection))
			}
		}
	} else if in.Region != "" && in.Tracked {
		faults = append(faults, apperr.InvalidField("region", "cannot be combined with tracked=true"))
	}
	return faults
}

const notWithConnection = "cannot be combined with connection_id"

type getInput struct {
	ServerPath
	ConnectionID httpx.ID `query:"connection_id" example:"019b7c5e-1f20-7a31-b5d4-0c7e2f9a6b13"`
	Region       string   `query:"region" minLength:"1" example:"RegionOne"`
}

// Resolve implements huma.Resolver.
func (in *getInput) Resolve(huma.Context) []error {
	if in.Region != "" && in.ConnectionID.UUID != uuid.Nil {
		return []error{apperr.InvalidField("region", notWithConnection)}
	}
	return nil
}

type historyInput struct {
	ServerPath
	httpx.Page
	ConnectionID httpx.ID `query:"connection_id" example:"019b7c5e-1f20-7a31-b5d4-0c7e2f9a6b13"`
	Marker       int      `query:"marker" minimum:"1" maximum:"9007199254740992" example:"4"`
}

type connectInput struct{ Body ServerConnect }

type connectOutput struct {
	Location string `header:"Location" doc:"Where the server is." pattern:"^/v1/servers/[0-9a-f-]{36}$"`
	Body     ServerConnected
}

// ServerConnect is the body of POST /v1/servers.
type ServerConnect struct {
	ServerID     httpx.ID  `json:"server_id"`
	ID           *httpx.ID `json:"id,omitempty" nullable:"true"`
	ConnectionID *httpx.ID `json:"connection_id,omitempty" nullable:"true"`
}

type changeInput struct {
	ServerPath
	Body ServerChange
}

// ServerChange is the body of PATCH /v1/servers/{id}.
type ServerChange struct {
	Reusable bool `json:"reusable" doc:"Whether orders with reuse may use the server."`
}

// The modes of DELETE.
const (
	deallocate = "deallocate" // the same as the action delete
	disconnect = "disconnect"
)

type removeInput struct {
	ServerPath
	Mode string `query:"mode" enum:"deallocate,disconnect" default:"deallocate" doc:"Delete, or stop tracking."`

	Force        bool     `query:"force" default:"false" doc:"Also a server that existed before it was connected."`
	ConnectionID httpx.ID `query:"connection_id" example:"019b7c5e-1f20-7a31-b5d4-0c7e2f9a6b13"`
}

// Resolve implements huma.Resolver.
func (in *removeInput) Resolve(huma.Context) []error {
	if in.Mode == disconnect && in.Force {
		return []error{apperr.InvalidField("force", "can be combined with the mode "+deallocate+" only")}
	}
	return nil
}

// ServerPage is a page of servers.
type ServerPage struct {
	Servers []domain.Server `json:"servers" maxItems:"1000"`
	Next    *string         `json:"next" pattern:"^/v1/servers\\?" doc:"The next page's URL; null at the end."`
}

// ServerConnected is a server that is tracked.
type ServerConnected struct {
	ID           uuid.UUID            `json:"id" doc:"The instance's id."`
	ServerID     serverID             `json:"server_id"`
	State        domain.InstanceState `json:"state"`
	Origin       string               `json:"origin" enum:"launched,connected"`
	ConnectionID *uuid.UUID           `json:"connection_id,omitempty" doc:"The connection that manages it, if any."`
}

func showConnected(i domain.Instance) ServerConnected {
	out := ServerConnected{ID: i.ID, ServerID: serverID(i.ServerID), State: i.State, Origin: i.Origin}
	if i.ConnectionID != uuid.Nil {
		out.ConnectionID = &i.ConnectionID
	}
	return out
}

// ServerConnecting is a server that run-connections connects.
type ServerConnecting struct {
	ID           uuid.UUID `json:"id" doc:"The id that the instance has, or will have."`
	ServerID     uuid.UUID `json:"server_id"`
	ConnectionID uuid.UUID `json:"connection_id"`
	ActionID     uuid.UUID `json:"action_id" doc:"The action that connects it."`
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

// ServerHistory is a page of a server's events.
type ServerHistory struct {
	InstanceID uuid.UUID     `json:"instance_id"`
	Events     []ServerEvent `json:"events" maxItems:"1000"`
	Next       *string       `json:"next" pattern:"^/v1/servers/history/" doc:"The next page's URL; null at the end."`
}

// ServerEvent is an event as callbacks get it.
type ServerEvent struct {
	ID   string          `json:"id" pattern:"^[0-9a-f-]{36}:[1-9][0-9]*$" doc:"The same as in deliveries."`
	Type string          `json:"type" minLength:"1"`
	At   time.Time       `json:"at"`
	Data json.RawMessage `json:"data"`
}
