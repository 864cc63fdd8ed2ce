package resources

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/auth"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

type handler struct{ svc service }

func routes(s service) []httpx.Route {
	h := handler{s}
	return []httpx.Route{httpx.Handle("GET /v1/resources", h.list)}
}

// answer is the body: a kind that was not asked for, or that failed, is absent; one that is empty is [].
type answer struct {
	Flavors        []domain.Flavor          `json:"flavors,omitzero"`
	Images         []domain.Image           `json:"images,omitzero"`
	Networks       []domain.Network         `json:"networks,omitzero"`
	KeyPairs       []domain.KeyPair         `json:"keypairs,omitzero"`
	SecurityGroups []domain.SecurityGroup   `json:"security_groups,omitzero"`
	Zones          []domain.Zone            `json:"zones,omitzero"`
	Quota          *domain.Quota            `json:"quota,omitempty"`
	Errors         map[string]httpx.Problem `json:"errors,omitempty"`

	// Through a connection only:
	AsOf      *time.Time `json:"as_of,omitempty"`
	Age       *int       `json:"age_seconds,omitempty"`
	Truncated []string   `json:"truncated,omitempty"`
}

func (h handler) list(r *http.Request) (answer, error) {
	query, err := httpx.ReadQuery(r, "kinds", "region", "connection_id")
	if err != nil {
		return answer{}, err
	}
	wanted, err := parseKinds(query.Text("kinds"))
	if err != nil {
		return answer{}, err
	}
	who, token, err := auth.Project(r.Context())
	if err != nil {
		return answer{}, err
	}
	if text := query.Text("connection_id"); text != "" {
		return h.through(r.Context(), who, text, query.Text("region"), wanted)
	}
	found, err := h.svc.List(r.Context(), who, token, query.Text("region"), wanted)
	if err != nil {
		return answer{}, err
	}
	out := answer{
		Flavors: found.flavors, Images: found.images, Networks: found.networks, KeyPairs: found.keyPairs,
		SecurityGroups: found.securityGroups, Zones: found.zones, Quota: found.quota,
	}
	for kind, err := range found.errors {
		if out.Errors == nil {
			out.Errors = map[string]httpx.Problem{}
		}
		out.Errors[kind] = httpx.NewProblem(err)
	}
	return out, nil
}

// parseKinds reads "flavors,images"; nothing means what every launch needs.
func parseKinds(text string) ([]string, error) {
	if text == "" {
		return []string{"flavors", "images", "networks"}, nil
	}
	wanted := strings.Split(text, ",")
	for _, kind := range wanted {
		if _, ok := kinds[kind]; !ok {
			return nil, apperr.Unknown("kinds", "kind", kind, kindNames()...)
		}
	}
	slices.Sort(wanted)
	return slices.Compact(wanted), nil
}

// through answers for a connection. A kind that could not be read is in errors, as one of the caller's own is.
func (h handler) through(ctx context.Context, who domain.Identity, connection, region string, wanted []string) (answer, error) {
	id, err := uuid.Parse(connection)
	if err != nil || len(connection) != 36 {
		return answer{}, apperr.Malformed("connection_id", "the id of a connection, a UUID", connection)
	}
	if region != "" {
		return answer{}, apperr.InvalidField("region", "does not go with connection_id: a connection has its own")
	}
	for _, kind := range wanted {
		if !slices.Contains(domain.SeenKinds(), kind) {
			return answer{}, apperr.InvalidField("kinds", "has "+kind+", which is not read through a connection", domain.SeenKinds()...)
		}
	}
	seen, age, err := h.svc.Through(ctx, who, id)
	if err != nil {
		return answer{}, err
	}
	seconds := int(age.Seconds())
	out := answer{AsOf: &seen.AsOf, Age: &seconds}
	for _, kind := range wanted {
		switch kind {
		case domain.SeenFlavors:
			out.Flavors = seen.Flavors
		case domain.SeenImages:
			out.Images = seen.Images
		case domain.SeenNetworks:
			out.Networks = seen.Networks
		case domain.SeenQuota:
			out.Quota = seen.Quota
		}
		if seen.IsCut(kind) {
			out.Truncated = append(out.Truncated, kind)
		}
		if why, failed := seen.Problems[kind]; failed {
			if out.Errors == nil {
				out.Errors = map[string]httpx.Problem{}
			}
			out.Errors[kind] = httpx.NewProblem(apperr.New(apperr.Code(why.Code), "%s", why.Detail))
		}
	}
	if len(out.Errors) == len(wanted) {
		errs := map[string]error{}
		for kind, why := range seen.Problems {
			errs[kind] = apperr.New(apperr.Code(why.Code), "%s", why.Detail)
		}
		return answer{}, worst(wanted, errs)
	}
	return out, nil
}
