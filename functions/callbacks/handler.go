package callbacks

import (
	"net/http"

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
		httpx.Handle("POST /v1/callbacks", h.create),
		httpx.Handle("GET /v1/callbacks", h.list),
		httpx.Handle("GET /v1/callbacks/{id}", h.get),
		httpx.Handle("PATCH /v1/callbacks/{id}", h.change),
		httpx.Handle("DELETE /v1/callbacks/{id}", h.delete),
		httpx.Handle("POST /v1/callbacks/{id}/secret", h.rotate),
		httpx.Handle("POST /v1/callbacks/{id}/test", h.test),
		httpx.Handle("GET /v1/callbacks/{id}/deliveries", h.deliveries),
		httpx.Handle("POST /v1/callbacks/{id}/deliveries/{delivery}/redeliver", h.redeliver),
	}
}

func (h handler) create(r *http.Request) (httpx.Response, error) {
	who, err := writer(r)
	if err != nil {
		return httpx.Response{}, err
	}
	in, err := httpx.Body[creation](r)
	if err != nil {
		return httpx.Response{}, err
	}
	wanted, err := in.callback(who)
	if err != nil {
		return httpx.Response{}, err
	}
	stored, secret, err := h.svc.Create(r.Context(), who, wanted, in.Secret)
	if err != nil {
		return httpx.Response{}, err
	}
	resp, err := httpx.JSON(http.StatusCreated, withSecret{show(stored), secret.Reveal()})
	resp.Header.Set("Location", "/v1/callbacks/"+stored.ID.String())
	return resp, err
}

const defaultLimit = 100

func (h handler) list(r *http.Request) (listAnswer, error) {
	params, err := httpx.ReadQuery(r, "limit", "marker")
	if err != nil {
		return listAnswer{}, err
	}
	limit, marker, err := page(params)
	if err != nil {
		return listAnswer{}, err
	}
	who, _, err := auth.Project(r.Context())
	if err != nil {
		return listAnswer{}, err
	}
	found, more, err := h.svc.List(r.Context(), who.ProjectID, limit, marker)
	if err != nil {
		return listAnswer{}, err
	}
	out := listAnswer{Callbacks: make([]callback, len(found))}
	for i, c := range found {
		out.Callbacks[i] = show(c)
	}
	if more {
		out.Next = httpx.Next(r, found[len(found)-1].ID.String())
	}
	return out, nil
}

func (h handler) get(r *http.Request) (callback, error) {
	if _, err := httpx.ReadQuery(r); err != nil {
		return callback{}, err
	}
	who, id, err := named(r)
	if err != nil {
		return callback{}, err
	}
	found, err := h.svc.Get(r.Context(), who.ProjectID, id)
	return show(found), err
}

func (h handler) change(r *http.Request) (callback, error) {
	who, id, err := addressed(r)
	if err != nil {
		return callback{}, err
	}
	in, err := httpx.Body[alteration](r)
	if err != nil {
		return callback{}, err
	}
	change, err := in.change()
	if err != nil {
		return callback{}, err
	}
	changed, err := h.svc.Change(r.Context(), who.ProjectID, id, change)
	return show(changed), err
}

func (h handler) delete(r *http.Request) (httpx.Response, error) {
	who, id, err := addressed(r)
	if err != nil {
		return httpx.Response{}, err
	}
	return httpx.Response{Status: http.StatusNoContent}, h.svc.Delete(r.Context(), who.ProjectID, id)
}

func (h handler) rotate(r *http.Request) (withSecret, error) {
	who, id, err := addressed(r)
	if err != nil {
		return withSecret{}, err
	}
	var in rotation
	if r.ContentLength != 0 {
		if in, err = httpx.Body[rotation](r); err != nil {
			return withSecret{}, err
		}
	}
	overlap, err := in.overlap()
	if err != nil {
		return withSecret{}, err
	}
	changed, secret, err := h.svc.Rotate(r.Context(), who.ProjectID, id, in.Secret, overlap)
	return withSecret{show(changed), secret.Reveal()}, err
}

func (h handler) test(r *http.Request) (httpx.Response, error) {
	who, id, err := addressed(r)
	if err != nil {
		return httpx.Response{}, err
	}
	made, err := h.svc.Test(r.Context(), who.ProjectID, id)
	if err != nil {
		return httpx.Response{}, err
	}
	return httpx.JSON(http.StatusAccepted, showDelivery(made))
}

func (h handler) deliveries(r *http.Request) (deliveriesAnswer, error) {
	params, err := httpx.ReadQuery(r, "status", "limit", "marker")
	if err != nil {
		return deliveriesAnswer{}, err
	}
	status, err := params.OneOf("status", string(domain.DeliveryDue), string(domain.DeliveryDelivered), string(domain.DeliveryDead))
	if err != nil {
		return deliveriesAnswer{}, err
	}
	limit, marker, err := page(params)
	if err != nil {
		return deliveriesAnswer{}, err
	}
	who, id, err := named(r)
	if err != nil {
		return deliveriesAnswer{}, err
	}
	q := domain.DeliveryQuery{Status: domain.DeliveryStatus(status), Limit: limit, Marker: marker}
	found, more, err := h.svc.Deliveries(r.Context(), who.ProjectID, id, q)
	if err != nil {
		return deliveriesAnswer{}, err
	}
	out := deliveriesAnswer{Deliveries: make([]delivery, len(found))}
	for i, d := range found {
		out.Deliveries[i] = showDelivery(d)
	}
	if more {
		out.Next = httpx.Next(r, found[len(found)-1].ID.String())
	}
	return out, nil
}

func (h handler) redeliver(r *http.Request) (httpx.Response, error) {
	who, id, err := addressed(r)
	if err != nil {
		return httpx.Response{}, err
	}
	old, err := parseID(r.PathValue("delivery"))
	if err != nil {
		return httpx.Response{}, apperr.New(apperr.NotFound, "there is no delivery %q: its id is a UUID", r.PathValue("delivery"))
	}
	made, err := h.svc.Redeliver(r.Context(), who.ProjectID, id, old)
	if err != nil {
		return httpx.Response{}, err
	}
	return httpx.JSON(http.StatusAccepted, showDelivery(made))
}

// writer is who calls a route that takes no parameters and changes something. OpenStack is not asked for anything then, so it is
// decided here that a role which only reads does not suffice.
func writer(r *http.Request) (domain.Identity, error) {
	if _, err := httpx.ReadQuery(r); err != nil {
		return domain.Identity{}, err
	}
	who, _, err := auth.Project(r.Context())
	if err == nil && !who.MayAct() {
		err = apperr.New(apperr.Forbidden, "the token's roles may only read: callbacks are changed with another")
	}
	return who, err
}

// addressed is who calls a route that takes no parameters and changes something, and the callback that its path names.
func addressed(r *http.Request) (domain.Identity, uuid.UUID, error) {
	if _, err := writer(r); err != nil {
		return domain.Identity{}, uuid.Nil, err
	}
	return named(r)
}

func named(r *http.Request) (domain.Identity, uuid.UUID, error) {
	who, _, err := auth.Project(r.Context())
	if err != nil {
		return who, uuid.Nil, err
	}
	id, err := parseID(r.PathValue("id"))
	if err != nil {
		err = apperr.New(apperr.NotFound, "there is no callback %q: its id is a UUID", r.PathValue("id"))
	}
	return who, id, err
}

func page(params httpx.Query) (limit int, marker uuid.UUID, err error) {
	if limit, err = params.Int("limit", defaultLimit, 1, httpx.MaxLimit); err != nil {
		return limit, marker, err
	}
	if text := params.Text("marker"); text != "" {
		if marker, err = parseID(text); err != nil {
			err = apperr.Malformed("marker", "an id, a UUID", text)
		}
	}
	return limit, marker, err
}
