package managed

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/auth"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

const noFlavor = "The project has no flavor of this name."

// flavorRoutes declares the routes of templates.
func flavorRoutes(api huma.API, h handler) {
	reads, writes := httpx.Before(auth.CanRead), httpx.Before(auth.CanWrite)
	httpx.Register(api, huma.Operation{
		OperationID: "listFlavors", Method: http.MethodGet, Path: "/v1/flavors", Tags: tags, Middlewares: reads,
		Summary:   "List the project's templates of resources",
		Responses: httpx.Answers(map[int]string{200: "A page of templates, by name."}),
	}, h.listFlavors)
	httpx.Register(api, huma.Operation{
		OperationID: "createFlavor", Method: http.MethodPost, Path: "/v1/flavors", Tags: tags, Middlewares: writes,
		DefaultStatus: http.StatusCreated, Summary: "Create a template of resources",
		Responses: httpx.Answers(map[int]string{
			201: "It is stored.", 403: mayNot, 422: unsupported,
			409: "The project has one of the name, or as many templates as it may have.",
		}),
	}, h.createFlavor)
	httpx.Register(api, huma.Operation{
		OperationID: "getFlavor", Method: http.MethodGet, Path: "/v1/flavors/{name}", Tags: tags, Middlewares: reads,
		Summary:   "Show a template",
		Responses: httpx.Answers(map[int]string{200: "The template.", 404: noFlavor}),
	}, h.getFlavor)
	httpx.Serve[putFlavorInput, flavorOutput](api, huma.Operation{
		OperationID: "putFlavor", Method: http.MethodPut, Path: "/v1/flavors/{name}", Tags: tags, Middlewares: writes,
		Summary: "Create or replace a template",
		Responses: httpx.Answers(map[int]string{
			200: "It is replaced, or nothing differs. With `dry_run=true` nothing is stored.",
			201: "It is new.",
			403: mayNot, 412: "", 422: unsupported,
			409: "The project has as many templates as it may have.",
		}),
	}, h.putFlavor)
	httpx.Register(api, huma.Operation{
		OperationID: "deleteFlavor", Method: http.MethodDelete, Path: "/v1/flavors/{name}", Tags: tags,
		Middlewares: writes, DefaultStatus: http.StatusNoContent, Summary: "Delete a template",
		Responses: httpx.Answers(map[int]string{
			204: "It is deleted.",
			403: mayNot, 404: noFlavor, 409: "Resources are declared with it: the error names them.", 412: "",
		}),
	}, h.deleteFlavor)
}

// PutFlavor is the body of PUT /v1/flavors/{name}.
type PutFlavor struct {
	Kind        string `json:"kind" maxLength:"63"`
	Provider    string `json:"provider,omitempty" maxLength:"63" doc:"The kind's, if it is given."`
	Description string `json:"description,omitempty" maxLength:"1000"`
	Spec        Spec   `json:"spec" doc:"Of the kind. Fields may be absent; resources add them."`
}

// CreateFlavor is the body of POST /v1/flavors.
type CreateFlavor struct {
	Name string `json:"name" maxLength:"63"`
	PutFlavor
}

// Resolve implements huma.Resolver.
func (c *CreateFlavor) Resolve(huma.Context) []error { return checkName(c.Name) }

func checkName(name string) []error {
	if nameForm.MatchString(name) {
		return nil
	}
	return []error{apperr.InvalidField("name", nameRule)}
}

// ResourceFlavorPage is a page of templates.
type ResourceFlavorPage struct {
	Items []ResourceFlavor `json:"flavors" maxItems:"1000"`
	Next  *string          `json:"next" pattern:"^/v1/flavors\\?" doc:"The URL of the next page, or null."`
}

// ResourceFlavor is a template of resources.
type ResourceFlavor struct {
	ID          uuid.UUID   `json:"id"`
	Name        string      `json:"name" minLength:"1" maxLength:"63"`
	Kind        domain.Kind `json:"kind" minLength:"1"`
	Provider    string      `json:"provider" minLength:"1"`
	Description string      `json:"description"`
	Spec        Spec        `json:"spec"`
	UserID      string      `json:"user_id" minLength:"1" doc:"Who changed it last."`
	CreatedAt   time.Time   `json:"created_at"`
	UpdatedAt   time.Time   `json:"updated_at"`
}

func showFlavor(f domain.ResourceFlavor) ResourceFlavor {
	return ResourceFlavor{
		ID: f.ID, Name: f.Name, Kind: f.Kind, Provider: f.Provider, Description: f.Description, Spec: Spec(f.Spec),
		UserID: f.UserID, CreatedAt: f.CreatedAt.UTC(), UpdatedAt: f.UpdatedAt.UTC(),
	}
}

type listFlavorsInput struct {
	Kind string `query:"kind" maxLength:"63" example:"VirtualMachine" doc:"Only templates of this kind."`
	httpx.PageRequest
	Marker string `query:"marker" maxLength:"63" example:"small" doc:"The last name before."`
}

func (h handler) listFlavors(ctx context.Context, in *listFlavorsInput) (*httpx.Value[ResourceFlavorPage], error) {
	kind, err := kindFilter(in.Kind)
	if err != nil {
		return nil, err
	}
	page, err := httpx.ReadPage(ctx, in.Limit, func(limit int) ([]domain.ResourceFlavor, error) {
		q := domain.FlavorQuery{Kind: kind, Limit: limit, Marker: in.Marker}
		return h.svc.flavors.List(ctx, auth.CallerOrNone(ctx).ProjectID, q)
	}, func(f domain.ResourceFlavor) string { return f.Name })
	body := ResourceFlavorPage{httpx.Each(page.Items, showFlavor), page.Next}
	return &httpx.Value[ResourceFlavorPage]{Body: body}, err
}

type flavorOutput struct {
	ETag *string `header:"ETag" doc:"The template's version." pattern:"^\"[^\"]+\"$"`
	Body ResourceFlavor
}

// replyFlavor is a template with its ETag.
func replyFlavor(f domain.ResourceFlavor, err error) (*flavorOutput, error) {
	if err != nil {
		return nil, err
	}
	tag := httpx.ETag(f.Version)
	return &flavorOutput{&tag, showFlavor(f)}, nil
}

type createFlavorInput struct{ Body CreateFlavor }

func (h handler) createFlavor(ctx context.Context, in *createFlavorInput) (*flavorOutput, error) {
	return replyFlavor(h.svc.CreateFlavor(ctx, auth.CallerOrNone(ctx), in.Body.Name, in.Body.PutFlavor))
}

// FlavorPath is the path of one. It is exported because huma ignores embedded structs that are not.
type FlavorPath struct {
	Name string `path:"name" maxLength:"63" example:"small" doc:"The template's name."`
}

func (h handler) getFlavor(ctx context.Context, in *FlavorPath) (*flavorOutput, error) {
	return replyFlavor(h.svc.flavors.Get(ctx, auth.CallerOrNone(ctx).ProjectID, in.Name))
}

type putFlavorInput struct {
	FlavorPath
	DryRun bool `query:"dry_run" default:"false" doc:"Only check it."`
	httpx.MatchRequest
	IfNoneMatch string `header:"If-None-Match" minLength:"1" example:"*"`
	Body        PutFlavor
}

// Resolve implements huma.Resolver.
func (in *putFlavorInput) Resolve(huma.Context) []error { return checkName(in.Name) }

func (h handler) putFlavor(ctx context.Context, in *putFlavorInput) (httpx.Response, error) {
	expected := conditionOf(httpx.RequestOf(ctx))
	stored, created, err := h.svc.PutFlavor(ctx, auth.CallerOrNone(ctx), in.Name, in.Body, expected, in.DryRun)
	if err != nil {
		return httpx.Response{}, err
	}
	if in.DryRun {
		return httpx.JSON(http.StatusOK, showFlavor(stored))
	}
	status := http.StatusOK
	if created {
		status = http.StatusCreated
	}
	return httpx.JSON(status, showFlavor(stored), "ETag", httpx.ETag(stored.Version))
}

type deleteFlavorInput struct {
	FlavorPath
	httpx.MatchRequest
}

func (h handler) deleteFlavor(ctx context.Context, in *deleteFlavorInput) (*struct{}, error) {
	return nil, h.svc.DeleteFlavor(ctx, auth.CallerOrNone(ctx), in.Name, conditionOf(httpx.RequestOf(ctx)))
}

// Spec is what a resource is declared to be: a MachineSpec, DeploymentSpec, VolumeSpec, ..., by its kind.
type Spec json.RawMessage

// Schema implements huma.SchemaProvider.
func (Spec) Schema(r huma.Registry) *huma.Schema {
	kinds := []*huma.Schema{}
	for _, kind := range slices.Sorted(maps.Keys(specTypes)) {
		kinds = append(kinds, r.Schema(specTypes[kind], true, ""))
	}
	// A template has only some fields, and the kind decides: checkSpec says what is wrong.
	anything := &huma.Schema{Type: huma.TypeObject, AdditionalProperties: true}
	return httpx.SharedSchema(r, "Spec", huma.Schema{
		Type: huma.TypeObject, AdditionalProperties: true, AnyOf: append(kinds, anything),
	})
}

// MarshalJSON implements json.Marshaler.
func (s Spec) MarshalJSON() ([]byte, error) { return json.RawMessage(s).MarshalJSON() }

// UnmarshalJSON implements json.Unmarshaler.
func (s *Spec) UnmarshalJSON(text []byte) error { return (*json.RawMessage)(s).UnmarshalJSON(text) }

// UserData are the fields of a server's spec that are sealed. It is exported because huma ignores embedded structs that
// are not.
type UserData struct {
	Text   *string `json:"user_data,omitempty" writeOnly:"true" maxLength:"49149"`
	Base64 *string `json:"user_data_base64,omitempty" writeOnly:"true"`
}

// MachineSpec declares a server.
type MachineSpec struct {
	domain.MachineSpec
	UserData
}

// DeploymentSpec declares a number of equal servers.
type DeploymentSpec struct {
	domain.DeploymentSpec
	UserData
}

// SecretSpec declares a secret. Its payload is sealed.
type SecretSpec struct {
	domain.SecretSpec
	Payload *string `json:"payload,omitempty" writeOnly:"true" maxLength:"20000"`
}
