package launch

import (
	"net/http"
	"slices"
	"strconv"
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
	return []httpx.Route{
		httpx.Handle("POST /v1/launch", h.launch),
		httpx.Handle("GET /v1/launch", h.list),
		httpx.Handle("GET /v1/launch/{id}", h.get),
	}
}

// answer is an order as the caller sees it.
type answer struct {
	ID           uuid.UUID          `json:"id"`
	ConnectionID *uuid.UUID         `json:"connection_id,omitempty"`
	Status       domain.OrderStatus `json:"status"`
	Error        *domain.Problem    `json:"error,omitempty"`
	CreatedAt    time.Time          `json:"created_at"`
	PrivateKey   string             `json:"private_key,omitempty"` // of the key pair that this very request made
	Callback     *shownCallback     `json:"callback,omitempty"`
	Instances    []instance         `json:"instances"`
}

type instance struct {
	ID       uuid.UUID            `json:"id"`
	Name     string               `json:"name"`
	ServerID string               `json:"server_id,omitempty"`
	State    domain.InstanceState `json:"state"`
	KeyName  string               `json:"key_name,omitempty"`
	Error    *domain.Problem      `json:"error,omitempty"`
}

func show(o domain.Order, c *domain.Callback) answer {
	a := answer{ID: o.ID, Status: o.Status, Error: o.Problem, CreatedAt: o.CreatedAt, Instances: []instance{}}
	if o.ConnectionID != uuid.Nil {
		a.ConnectionID = &o.ConnectionID
	}
	for _, x := range o.Instances {
		if x.DisconnectedAt.IsZero() { // a disconnected one is shown to nobody
			a.Instances = append(a.Instances, instance{ID: x.ID, Name: x.Name, ServerID: x.ServerID, State: x.State, KeyName: x.KeyName, Error: x.Problem})
		}
	}
	if c != nil {
		a.Callback = &shownCallback{ID: c.ID, Status: c.Status}
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
	req, err := parse(r)
	if err != nil {
		return httpx.Response{}, err
	}
	a, err := h.svc.access(r.Context(), who, token, req.connectionID)
	if err != nil {
		return httpx.Response{}, err
	}
	if dryRun {
		report, err := h.svc.DryRun(r.Context(), a, req)
		if err != nil {
			return httpx.Response{}, err
		}
		return httpx.JSON(http.StatusOK, report)
	}
	done, err := h.svc.Launch(r.Context(), a, req)
	if err != nil {
		return httpx.Response{}, err
	}
	status := http.StatusOK
	if done.isFresh {
		status = http.StatusAccepted
	}
	shown := show(done.order, done.callback)
	shown.PrivateKey = done.privateKey.Reveal()
	if shown.Callback != nil {
		shown.Callback.Secret = done.callbackSecret.Reveal()
	}
	resp, err := httpx.JSON(status, shown)
	if err == nil {
		resp.Header.Set("Location", location(done.order))
		if done.retryAfter > 0 {
			resp.Header.Set("Retry-After", strconv.Itoa(int(done.retryAfter/time.Second)+1))
		}
	}
	return resp, err
}

// location is where whoever has sent the order finds it.
func location(o domain.Order) string {
	path := "/v1/launch/" + o.ID.String()
	if o.ConnectionID == uuid.Nil {
		return path
	}
	return path + "?connection_id=" + o.ConnectionID.String()
}

type listAnswer struct {
	Orders []answer `json:"orders"`
	Next   *string  `json:"next"`
}

func (h handler) list(r *http.Request) (listAnswer, error) {
	q, err := parseList(r)
	if err != nil {
		return listAnswer{}, err
	}
	who, token, err := auth.Project(r.Context())
	if err != nil {
		return listAnswer{}, err
	}
	a, err := h.svc.access(r.Context(), who, token, q.ConnectionID)
	if err != nil {
		return listAnswer{}, err
	}
	found, more, err := h.svc.List(r.Context(), a, q)
	if err != nil {
		return listAnswer{}, err
	}
	out := listAnswer{Orders: make([]answer, len(found))}
	for n, l := range found {
		out.Orders[n] = show(l.order, l.callback)
	}
	if more {
		out.Next = httpx.Next(r, found[len(found)-1].order.ID.String())
	}
	return out, nil
}

const defaultLimit = 100

func parseList(r *http.Request) (q domain.OrderQuery, err error) {
	params, err := httpx.ReadQuery(r, "status", "limit", "marker", "connection_id")
	if err != nil {
		return q, err
	}
	if q.Limit, err = params.Int("limit", defaultLimit, 1, httpx.MaxLimit); err != nil {
		return q, err
	}
	if text := params.Text("status"); text != "" {
		q.Statuses = strings.Split(text, ",")
	}
	for _, status := range q.Statuses {
		if all := domain.OrderStatuses(); !slices.Contains(all, status) {
			return q, apperr.Unknown("status", "status of an order", status, all...)
		}
	}
	if text := params.Text("marker"); text != "" {
		if q.Marker, err = parseID("marker", text); err != nil {
			return q, err
		}
	}
	q.ConnectionID, err = connectionID(params)
	return q, err
}

func (h handler) get(r *http.Request) (answer, error) {
	query, err := httpx.ReadQuery(r, "connection_id")
	if err != nil {
		return answer{}, err
	}
	connection, err := connectionID(query)
	if err != nil {
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
	a, err := h.svc.access(r.Context(), who, token, connection)
	if err != nil {
		return answer{}, err
	}
	order, callback, err := h.svc.Get(r.Context(), a, id)
	return show(order, callback), err
}

// connectionID is the connection that a query names; zero when it names none.
func connectionID(query httpx.Query) (uuid.UUID, error) {
	text := query.Text("connection_id")
	if text == "" {
		return uuid.Nil, nil
	}
	return parseID("connection_id", text)
}
