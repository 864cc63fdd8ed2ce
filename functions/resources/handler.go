package resources

import (
	"net/http"
	"slices"
	"strings"
	"time"

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
