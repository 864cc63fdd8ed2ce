package launch

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
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
	return []httpx.Route{
		httpx.Handle("POST /v1/launch", h.launch),
		httpx.Handle("GET /v1/launch/{id}", h.get),
	}
}

// request is the body of POST /v1/launch. flavor, image and networks take an id or a unique name.
type request struct {
	ID               string            `json:"id"`
	Name             string            `json:"name"`
	Flavor           string            `json:"flavor"`
	Image            string            `json:"image"`
	Networks         []string          `json:"networks"`
	Count            *int              `json:"count"`
	KeyName          string            `json:"key_name"`
	SecurityGroups   []string          `json:"security_groups"`
	AvailabilityZone string            `json:"availability_zone"`
	UserData         domain.Secret     `json:"user_data"`
	Metadata         map[string]string `json:"metadata"`
}

// hash tells whether two requests ask for the same, however they are written: by what was read from them, without
// the id (whose letters may be of either case). user_data goes in by itself, because it does not marshal.
func (in request) hash() [sha256.Size]byte {
	in.ID = ""
	if in.Count == nil {
		one := 1
		in.Count = &one
	}
	text, _ := json.Marshal(in) //nolint:errchkjson // strings, numbers and lists of them cannot fail
	return sha256.Sum256(fmt.Appendf(text, "\n%s", in.UserData.Reveal()))
}

// wish is a request that was checked: an order without ids of the cloud's.
type wish struct {
	id       uuid.UUID
	given    bool // the id is the caller's
	hash     [sha256.Size]byte
	spec     domain.LaunchSpec
	flavor   string
	image    string
	networks []string
	userData domain.Secret
}

func parse(r *http.Request) (wish, error) {
	in, err := httpx.Body[request](r)
	if err != nil {
		return wish{}, err
	}
	w := wish{id: uuid.Must(uuid.NewV7()), hash: in.hash(), flavor: in.Flavor, image: in.Image, networks: in.Networks, userData: in.UserData}
	w.spec = domain.LaunchSpec{
		Name: in.Name, Count: 1, KeyName: in.KeyName, SecurityGroups: in.SecurityGroups,
		Zone: in.AvailabilityZone, Metadata: in.Metadata,
	}
	if in.Count != nil {
		w.spec.Count = *in.Count
	}
	if in.ID != "" {
		if w.id, err = uuid.Parse(in.ID); err != nil || len(in.ID) != 36 {
			return wish{}, apperr.InvalidField("id", "must be a UUID")
		}
		w.given = true
	}
	return w, w.check()
}

func (w wish) check() error {
	if err := w.spec.Check(); err != nil {
		return err
	}
	if err := domain.CheckText("flavor", w.flavor, domain.MaxNameLength); err != nil {
		return err
	}
	if err := domain.CheckText("image", w.image, domain.MaxNameLength); err != nil {
		return err
	}
	if len(w.networks) > domain.MaxNetworks {
		return apperr.InvalidField("networks", fmt.Sprintf("must have at most %d entries", domain.MaxNetworks))
	}
	for i, n := range w.networks {
		if err := domain.CheckText(fmt.Sprintf("networks[%d]", i), n, domain.MaxNameLength); err != nil {
			return err
		}
	}
	if len(w.userData) > domain.MaxUserData {
		return apperr.InvalidField("user_data", fmt.Sprintf("must have at most %d bytes", domain.MaxUserData))
	}
	return nil
}

// answer is an order as the caller sees it.
type answer struct {
	ID        uuid.UUID          `json:"id"`
	Status    domain.OrderStatus `json:"status"`
	CreatedAt time.Time          `json:"created_at"`
	Instances []instance         `json:"instances"`
}

type instance struct {
	ID       uuid.UUID            `json:"id"`
	Name     string               `json:"name"`
	ServerID string               `json:"server_id,omitempty"`
	State    domain.InstanceState `json:"state"`
	Error    *domain.Problem      `json:"error,omitempty"`
}

func show(o domain.Order) answer {
	a := answer{ID: o.ID, Status: o.Status, CreatedAt: o.CreatedAt, Instances: make([]instance, len(o.Instances))}
	for i, x := range o.Instances {
		a.Instances[i] = instance{ID: x.ID, Name: x.Name, ServerID: x.ServerID, State: x.State, Error: x.Problem}
	}
	return a
}

func (h handler) launch(r *http.Request) (httpx.Response, error) {
	query, err := httpx.ReadQuery(r, "dry_run")
	if err != nil {
		return httpx.Response{}, err
	}
	dryRun, _, err := query.Bool("dry_run")
	if err != nil {
		return httpx.Response{}, err
	}
	who, token, err := auth.Project(r.Context())
	if err != nil {
		return httpx.Response{}, err
	}
	w, err := parse(r)
	if err != nil {
		return httpx.Response{}, err
	}
	if dryRun {
		report, err := h.svc.DryRun(r.Context(), who, token, w)
		if err != nil {
			return httpx.Response{}, err
		}
		return httpx.JSON(http.StatusOK, report)
	}
	order, fresh, err := h.svc.Launch(r.Context(), who, token, w)
	if err != nil {
		return httpx.Response{}, err
	}
	status := http.StatusOK
	if fresh {
		status = http.StatusAccepted
	}
	resp, err := httpx.JSON(status, show(order))
	if err == nil {
		resp.Header.Set("Location", "/v1/launch/"+order.ID.String())
	}
	return resp, err
}

func (h handler) get(r *http.Request) (answer, error) {
	if _, err := httpx.ReadQuery(r); err != nil {
		return answer{}, err
	}
	who, token, err := auth.Project(r.Context())
	if err != nil {
		return answer{}, err
	}
	text := r.PathValue("id")
	id, err := uuid.Parse(text)
	if err != nil || len(text) != 36 {
		return answer{}, apperr.New(apperr.NotFound, "there is no order %s", text)
	}
	order, err := h.svc.Get(r.Context(), who, token, id)
	return show(order), err
}
