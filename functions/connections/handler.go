package connections

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/auth"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

type handler struct{ svc service }

func routes(s service) []httpx.Route {
	h := handler{s}
	return append([]httpx.Route{
		httpx.Handle("POST /v1/connections", h.create),
		httpx.Handle("GET /v1/connections", h.list),
		httpx.Handle("GET /v1/connections/access-rules", h.rules),
		httpx.Handle("GET /v1/connections/{id}", h.get),
		httpx.Handle("PATCH /v1/connections/{id}", h.change),
		httpx.Handle("DELETE /v1/connections/{id}", h.delete),
		httpx.Handle("POST /v1/connections/{id}/check", h.check),
		httpx.Handle("POST /v1/connections/{id}/suspend", h.suspend),
		httpx.Handle("POST /v1/connections/{id}/resume", h.resume),
	}, consentRoutes(h)...)
}

func (h handler) create(r *http.Request) (httpx.Response, error) {
	if _, err := httpx.ReadQuery(r); err != nil {
		return httpx.Response{}, err
	}
	who, token, err := auth.Project(r.Context())
	if err != nil {
		return httpx.Response{}, err
	}
	if !who.MayAct() {
		return httpx.Response{}, apperr.New(apperr.Forbidden, "this needs a role that may do more than read")
	}
	in, err := httpx.Body[creation](r)
	if err != nil {
		return httpx.Response{}, err
	}
	wanted, err := in.wish(who)
	if err != nil {
		return httpx.Response{}, err
	}
	stored, err := h.svc.Create(r.Context(), who, token, wanted)
	if err != nil {
		return httpx.Response{}, err
	}
	resp, err := shown(http.StatusCreated, who, stored)
	resp.Header.Set("Location", "/v1/connections/"+stored.ID.String())
	return resp, err
}

const defaultLimit = 100

func (h handler) list(r *http.Request) (listAnswer, error) {
	q, err := parseList(r)
	if err != nil {
		return listAnswer{}, err
	}
	who, _, err := auth.Project(r.Context())
	if err != nil {
		return listAnswer{}, err
	}
	found, more, err := h.svc.List(r.Context(), who, q)
	if err != nil {
		return listAnswer{}, err
	}
	out := listAnswer{Connections: make([]connection, len(found))}
	for i, c := range found {
		out.Connections[i] = show(who, c)
	}
	if more {
		out.Next = httpx.Next(r, found[len(found)-1].ID.String())
	}
	return out, nil
}

func parseList(r *http.Request) (q domain.ConnectionQuery, err error) {
	params, err := httpx.ReadQuery(r, "usable", "status", "limit", "marker")
	if err != nil {
		return q, err
	}
	if q.Usable, _, err = params.Bool("usable"); err != nil {
		return q, err
	}
	if text := params.Text("status"); text != "" {
		q.Statuses = strings.Split(text, ",")
	}
	for _, status := range q.Statuses {
		if all := domain.ConnectionStatuses(); !slices.Contains(all, status) {
			return q, apperr.InvalidField("status", fmt.Sprintf("unknown status %q; expected some of these, separated by commas", status), all...)
		}
	}
	if q.Usable && q.Statuses != nil {
		return q, apperr.InvalidField("status", "does not go with usable=true, which lists active connections")
	}
	if q.Limit, err = params.Int("limit", defaultLimit, 1, httpx.MaxLimit); err != nil {
		return q, err
	}
	if text := params.Text("marker"); text != "" {
		if q.Marker, err = parseID(text); err != nil {
			return q, apperr.Malformed("marker", "the id of a connection, a UUID", text)
		}
	}
	return q, nil
}

func (h handler) rules(r *http.Request) (rulesAnswer, error) {
	params, err := httpx.ReadQuery(r, "actions")
	if err != nil {
		return rulesAnswer{}, err
	}
	names := domain.Permissions()
	if text := params.Text("actions"); text != "" {
		names = strings.Split(text, ",")
	}
	actions := make([]domain.Permission, len(names))
	for n, name := range names {
		actions[n] = domain.Permission(name)
	}
	if err := checkActions(actions); err != nil {
		return rulesAnswer{}, err
	}
	return rulesAnswer{domain.AccessRules(actions)}, nil
}

func (h handler) get(r *http.Request) (httpx.Response, error) {
	who, _, id, err := named(r)
	if err != nil {
		return httpx.Response{}, err
	}
	found, err := h.svc.Get(r.Context(), who, id)
	if err != nil {
		return httpx.Response{}, err
	}
	return shown(http.StatusOK, who, found)
}

// shown is the answer with a connection, and with the version that a change may name.
func shown(status int, who domain.Identity, c domain.Connection) (httpx.Response, error) {
	resp, err := httpx.JSON(status, show(who, c))
	if err == nil {
		resp.Header.Set("ETag", etag(c))
	}
	return resp, err
}

func (h handler) delete(r *http.Request) (httpx.Response, error) {
	who, token, id, err := named(r)
	if err != nil {
		return httpx.Response{}, err
	}
	return httpx.Response{Status: http.StatusNoContent}, h.svc.Delete(r.Context(), who, token, id)
}

func (h handler) check(r *http.Request) (httpx.Response, error) {
	who, _, id, err := named(r)
	if err != nil {
		return httpx.Response{}, err
	}
	c, works, err := h.svc.Check(r.Context(), who, id)
	if err != nil {
		return httpx.Response{}, err
	}
	if works != nil {
		return httpx.JSON(http.StatusOK, showCheck(who, c, works))
	}
	resp, err := httpx.JSON(http.StatusAccepted, showCheck(who, c, works))
	resp.Header.Set("Retry-After", strconv.Itoa(int(recheckAfter.Seconds())))
	return resp, err
}

// named is who calls a route that takes no parameters, and the connection that its path names.
func named(r *http.Request) (who domain.Identity, token domain.Secret, id uuid.UUID, err error) {
	if _, err := httpx.ReadQuery(r); err != nil {
		return who, token, id, err
	}
	if who, token, err = auth.Project(r.Context()); err != nil {
		return who, token, id, err
	}
	if id, err = parseID(r.PathValue("id")); err != nil {
		err = apperr.New(apperr.NotFound, "there is no connection %q: its id is a UUID", r.PathValue("id"))
	}
	return who, token, id, err
}
