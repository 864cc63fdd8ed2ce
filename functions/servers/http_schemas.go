package servers

import (
	"encoding/json"
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/agent"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

// The types of domain, as the API names and describes them.
type (
	// ServerFlavor describes a server's flavor.
	ServerFlavor domain.FlavorRef
	// ServerImage describes a server's image.
	ServerImage domain.ImageRef
	// ServerFault describes a server's fault.
	ServerFault domain.Fault
	// ServerInstance describes the instance that a server is tracked as.
	ServerInstance domain.Tracked
	// ActionError describes why an action failed.
	ActionError domain.Problem
	// RegistryLogin describes the login to an image's registry.
	RegistryLogin agent.Registry
	// ServerAgent describes an instance's agent.
	ServerAgent struct {
		DeploymentID uuid.UUID         `json:"deployment_id"`
		Image        string            `json:"image" minLength:"1" doc:"The OCI reference."`
		DeployedAt   time.Time         `json:"deployed_at" doc:"When the deployment was requested."`
		ReadyAt      orNull[time.Time] `json:"ready_at" doc:"When the agent reported ready. Null until then."`
	}
)

// describe says what the types' tags cannot.
func describe(api huma.API) {
	schemas := api.OpenAPI().Components.Schemas
	for t, name := range map[reflect.Type]reflect.Type{
		reflect.TypeFor[domain.FlavorRef](): reflect.TypeFor[ServerFlavor](),
		reflect.TypeFor[domain.Fault]():     reflect.TypeFor[ServerFault](),
		reflect.TypeFor[domain.Agent]():     reflect.TypeFor[ServerAgent](),
		reflect.TypeFor[domain.Problem]():   reflect.TypeFor[ActionError](),
		reflect.TypeFor[agent.Registry]():   reflect.TypeFor[RegistryLogin](),
	} {
		schemas.RegisterTypeAlias(t, name)
	}
	httpx.DescribeAs[domain.ImageRef, orNull[ServerImage]](api)
	httpx.DescribeAs[domain.Tracked, orNull[ServerInstance]](api)
	httpx.DescribeAs[domain.InstanceState, stateSchema](api)
	httpx.DescribeAs[domain.ActionStatus, actionStatusSchema](api)
	httpx.DescribeAs[domain.Action, actionSchema](api)
}

// answer is a response beside the one of an operation's output type.
func answer[T any](api huma.API, text string) *huma.Response {
	schema := api.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[T](), true, "")
	return &huma.Response{Description: text, Content: map[string]*huma.MediaType{"application/json": {Schema: schema}}}
}

// orNull describes a T that may be null. Huma's nullable is for scalars only.
type orNull[T any] struct{}

// Schema implements huma.SchemaProvider.
func (orNull[T]) Schema(r huma.Registry) *huma.Schema {
	return &huma.Schema{AnyOf: []*huma.Schema{r.Schema(reflect.TypeFor[T](), true, ""), {Type: "null"}}}
}

// stateSchema is that of openapi.base.yaml, which other functions use, too.
type stateSchema struct{}

// Schema implements huma.SchemaProvider.
func (stateSchema) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Ref: "#/components/schemas/InstanceState"}
}

type actionStatusSchema struct{}

// Schema implements huma.SchemaProvider.
func (actionStatusSchema) Schema(r huma.Registry) *huma.Schema {
	return enum(r, "DelegatedActionStatus", "running", "done", "failed")
}

type actionSchema struct{}

// Schema implements huma.SchemaProvider.
func (actionSchema) Schema(r huma.Registry) *huma.Schema {
	return enum(r, "ActionVerb",
		"start", "stop", "reboot", "shelve", "unshelve", "snapshot", "deploy", "delete", "connect")
}

func enum(r huma.Registry, name string, values ...any) *huma.Schema {
	return httpx.SharedSchema(r, name, huma.Schema{Type: huma.TypeString, Enum: values})
}

type serverStatus string

// Schema implements huma.SchemaProvider.
func (serverStatus) Schema(huma.Registry) *huma.Schema {
	var values []any
	for _, status := range domain.ServerStatuses() {
		values = append(values, status)
	}
	return &huma.Schema{Type: huma.TypeString, Enum: values}
}

// serverID is Nova's id of a server, a UUID.
type serverID string

// Schema implements huma.SchemaProvider.
func (serverID) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Ref: "#/components/schemas/UUID"}
}

// ServerResult is a ServerActed or a ServerNotActed.
type ServerResult struct{ value any }

// MarshalJSON implements json.Marshaler.
func (r ServerResult) MarshalJSON() ([]byte, error) { return json.Marshal(r.value) }

// Schema implements huma.SchemaProvider.
func (ServerResult) Schema(r huma.Registry) *huma.Schema {
	return httpx.SharedSchema(r, "ServerResult", huma.Schema{OneOf: []*huma.Schema{
		r.Schema(reflect.TypeFor[ServerActed](), true, ""), r.Schema(reflect.TypeFor[ServerNotActed](), true, ""),
	}})
}
