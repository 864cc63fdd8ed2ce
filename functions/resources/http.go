package resources

import (
	"context"
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

// routes declares what the function serves.
func routes(api huma.API, s service) {
	httpx.Refer[httpx.Problem](api, "PartProblem") // a part's problem has no request id
	httpx.Register(api, huma.Operation{
		OperationID: "listResources", Method: http.MethodGet, Path: "/v1/resources", Tags: []string{"resources"},
		Middlewares: httpx.Before(auth.CanRead),
		Summary:     "List what the project can launch servers with",
		Responses: httpx.Answers(map[int]string{
			200: "The resources. A kind that was not requested, or that failed, is absent.",
			404: "An OpenStack service does not know what was requested.",
			501: "",
		}),
	}, handler{s}.list)
	httpx.Register(api, huma.Operation{
		OperationID: "deleteKeyPair", Method: http.MethodDelete, Path: "/v1/resources/keypairs/{name}",
		Tags: []string{"resources"}, Middlewares: httpx.Before(auth.CanWrite),
		Summary:   "Delete a key pair of the caller",
		Responses: httpx.Answers(map[int]string{204: "It is deleted.", 404: "The caller has no such key pair."}),
	}, handler{s}.deleteKeyPair)
	httpx.Register(api, httpx.Idempotent(huma.Operation{
		OperationID: "createKeyPair", Method: http.MethodPost, Path: "/v1/resources/keypairs",
		DefaultStatus: http.StatusCreated, Tags: []string{"resources"}, Middlewares: httpx.Before(auth.CanWrite),
		Summary: "Create or import a key pair of the caller",
		Responses: httpx.Answers(map[int]string{
			201: "The key pair is stored. A generated one has its private key.",
			409: "The caller has a key pair of this name (Nova's message).",
		}),
	}), handler{s}.createKeyPair)
}

// KeyPairRequest is the body of POST /v1/resources/keypairs.
type KeyPairRequest struct {
	Name      string `json:"name" minLength:"1" maxLength:"255" doc:"Letters, digits, spaces, - and _."`
	PublicKey string `json:"public_key,omitempty" minLength:"1" maxLength:"16384"`
}

// Resolve implements huma.Resolver.
func (in *KeyPairRequest) Resolve(huma.Context) (faults []error) {
	for _, field := range [][2]string{{"name", in.Name}, {"public_key", in.PublicKey}} {
		if err := domain.CheckStorable(field[0], field[1]); err != nil {
			faults = append(faults, err)
		}
	}
	return faults
}

// KeyPairCreated is a key pair with its private key, if that was generated.
type KeyPairCreated struct {
	domain.KeyPair

	PublicKey  string `json:"public_key" minLength:"1"`
	PrivateKey string `json:"private_key,omitempty" minLength:"1" doc:"In OpenSSH's format. It is shown this once."`
}

type createKeyPairInput struct{ Body KeyPairRequest }

func (h handler) createKeyPair(
	ctx context.Context, in *createKeyPairInput,
) (*httpx.Value[KeyPairCreated], error) {
	who, token := auth.Caller(ctx)
	made, private, err := h.svc.CreateKeyPair(ctx, who, token, in.Body.Name, in.Body.PublicKey)
	return &httpx.Value[KeyPairCreated]{Body: KeyPairCreated{made, made.PublicKey, private.Reveal()}}, err
}

type keyPairPath struct {
	Name string `path:"name" minLength:"1" maxLength:"255" example:"cloudfn-0f8fad5b-d9cb-469f-a165-70867728950e"`
}

func (h handler) deleteKeyPair(ctx context.Context, in *keyPairPath) (*struct{}, error) {
	who, token := auth.Caller(ctx)
	return nil, h.svc.DeleteKeyPair(ctx, who, token, in.Name)
}

type handler struct{ svc service }

type listInput struct {
	Kinds        kindList `query:"kinds" minItems:"1" default:"flavors,images,networks" example:"flavors,quota"`
	Region       string   `query:"region" example:"RegionOne"`
	ConnectionID httpx.ID `query:"connection_id" example:"019b7c5e-1f20-7a31-b5d4-0c7e2f9a6b13"`
}

type kindList []string

// Schema implements huma.SchemaProvider.
func (kindList) Schema(huma.Registry) *huma.Schema {
	var all []any
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		all = append(all, kind)
	}
	return &huma.Schema{Type: huma.TypeArray, Items: &huma.Schema{Type: huma.TypeString, Enum: all}}
}

// Resources are the requested kinds that did not fail. A kind without entries is [].
type Resources struct {
	Flavors        []domain.Flavor          `json:"flavors,omitzero"`
	Images         []domain.Image           `json:"images,omitzero"`
	Networks       []domain.Network         `json:"networks,omitzero" doc:"External ones come last, each part by name."`
	KeyPairs       []domain.KeyPair         `json:"keypairs,omitzero"`
	SecurityGroups []domain.SecurityGroup   `json:"security_groups,omitzero"`
	Regions        []domain.Region          `json:"regions,omitzero"`
	Zones          []domain.Zone            `json:"zones,omitzero"`
	Quota          *domain.Quota            `json:"quota,omitempty"`
	Errors         map[string]httpx.Problem `json:"errors,omitempty" minProperties:"1" doc:"The kinds that failed."`

	// With a connection only:
	AsOf      *time.Time `json:"as_of,omitempty" doc:"With a connection: when it was read."`
	Age       *int       `json:"age_seconds,omitempty" minimum:"0" doc:"With a connection: how long ago that is."`
	Truncated []string   `json:"truncated,omitempty" minItems:"1" enum:"flavors,images,networks,quota"`
}

// fail notes that a kind failed.
func (r *Resources) fail(kind string, err error) {
	if r.Errors == nil {
		r.Errors = map[string]httpx.Problem{}
	}
	r.Errors[kind] = httpx.NewProblem(err)
}

func (h handler) list(ctx context.Context, in *listInput) (*httpx.Value[Resources], error) {
	who, token := auth.Caller(ctx)
	slices.Sort(in.Kinds)
	wanted := slices.Compact(in.Kinds)
	if in.ConnectionID.UUID != uuid.Nil {
		out, err := h.ofConnection(ctx, who, in.ConnectionID.UUID, in.Region, wanted)
		return &httpx.Value[Resources]{Body: out}, err
	}
	found, err := h.svc.List(ctx, who, token, in.Region, wanted)
	return &httpx.Value[Resources]{Body: found}, err
}

// ofConnection answers for a connection. A kind that could not be read is in errors, as one of the caller's own is.
func (h handler) ofConnection(
	ctx context.Context, who domain.Identity, id uuid.UUID, region string, wanted []string,
) (Resources, error) {
	if region != "" {
		return Resources{}, apperr.InvalidField("region",
			"cannot be combined with connection_id: a connection has its own")
	}
	for _, kind := range wanted {
		if !slices.Contains(domain.ResourceKinds(), kind) {
			return Resources{}, apperr.InvalidField("kinds", "has "+kind+", which is not read through a connection",
				domain.ResourceKinds()...)
		}
	}
	available, age, err := h.svc.OfConnection(ctx, who, id)
	if err != nil {
		return Resources{}, err
	}
	seconds := int(age.Seconds())
	out := Resources{AsOf: &available.AsOf, Age: &seconds}
	for _, kind := range wanted {
		switch kind {
		case domain.ResourceFlavors:
			out.Flavors = available.Flavors
		case domain.ResourceImages:
			out.Images = available.Images
		case domain.ResourceNetworks:
			out.Networks = available.Networks
		case domain.ResourceQuota:
			out.Quota = available.Quota
		}
		if available.IsCut(kind) {
			out.Truncated = append(out.Truncated, kind)
		}
		if why, failed := available.Problems[kind]; failed {
			out.fail(kind, apperr.New(apperr.Code(why.Code), "%s", why.Detail))
		}
	}
	if len(out.Errors) == len(wanted) {
		errs := map[string]error{}
		for kind, why := range available.Problems {
			errs[kind] = apperr.New(apperr.Code(why.Code), "%s", why.Detail)
		}
		return Resources{}, worst(wanted, errs)
	}
	return out, nil
}
