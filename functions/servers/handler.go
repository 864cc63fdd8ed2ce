package servers

import (
	"net/http"
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
	return []httpx.Route{
		httpx.Handle("GET /v1/servers", h.list),
		httpx.Handle("GET /v1/servers/{id}", h.get),
		httpx.Handle("POST /v1/servers", h.connect),
		httpx.Handle("PATCH /v1/servers/{id}", h.change),
		httpx.Handle("POST /v1/servers/{id}/actions", h.act),
		httpx.Handle("POST /v1/servers/actions", h.actOnMany),
		httpx.Handle("GET /v1/servers/actions/{action}", h.action),
		httpx.Handle("GET /v1/servers/history/{id}", h.history),
		httpx.Handle("DELETE /v1/servers/{id}", h.remove),
	}
}

type listAnswer struct {
	Servers []domain.Server `json:"servers"`
	Next    *string         `json:"next"`
}

func (h handler) list(r *http.Request) (listAnswer, error) {
	q, err := parseQuery(r)
	if err != nil {
		return listAnswer{}, err
	}
	who, token, err := auth.Project(r.Context())
	if err != nil {
		return listAnswer{}, err
	}
	a, err := h.svc.inRegion(q.region).access(r.Context(), who, token, q.connection)
	if err != nil {
		return listAnswer{}, err
	}
	found, marker, err := h.svc.List(r.Context(), a, q)
	if err != nil {
		return listAnswer{}, err
	}
	out := listAnswer{Servers: found}
	if marker != "" {
		out.Next = httpx.Next(r, marker)
	}
	return out, nil
}

// defaultLimit keeps the usual answer fast: Nova asks Neutron once for every 150 servers of a page.
const defaultLimit = 100

func parseQuery(r *http.Request) (q query, err error) {
	params, err := httpx.ReadQuery(r, "status", "name", "tracked", "limit", "marker", "connection_id", "region")
	if err != nil {
		return q, err
	}
	if text := params.Text("connection_id"); text != "" {
		if q.connection, err = connectionID(text); err != nil {
			return q, err
		}
		for _, name := range []string{"status", "name", "tracked", "region"} {
			if params.Text(name) != "" {
				return q, apperr.InvalidField(name, "does not go with connection_id")
			}
		}
	}
	if q.Limit, err = params.Int("limit", defaultLimit, 1, httpx.MaxLimit); err != nil {
		return q, err
	}
	if q.Status, err = params.OneOf("status", domain.ServerStatuses()...); err != nil {
		return q, err
	}
	tracked, given, err := params.Bool("tracked")
	if given {
		q.tracked = &tracked
	}
	q.Name, q.region = params.Text("name"), params.Text("region")
	if q.region != "" && tracked && err == nil {
		err = apperr.InvalidField("region", "does not go with tracked=true: instances are followed in one region")
	}
	if q.Marker = params.Text("marker"); q.Marker != "" && err == nil {
		q.Marker, err = serverID("marker", q.Marker)
	}
	return q, err
}

func (h handler) get(r *http.Request) (domain.Server, error) {
	params, err := httpx.ReadQuery(r, "connection_id", "region")
	if err != nil {
		return domain.Server{}, err
	}
	who, token, err := auth.Project(r.Context())
	if err != nil {
		return domain.Server{}, err
	}
	id, err := pathID(r)
	if err != nil {
		return domain.Server{}, err
	}
	var connection uuid.UUID
	text, region := params.Text("connection_id"), params.Text("region")
	if text != "" {
		if region != "" {
			return domain.Server{}, apperr.InvalidField("region", "does not go with connection_id")
		}
		if connection, err = connectionID(text); err != nil {
			return domain.Server{}, err
		}
	}
	a, err := h.svc.inRegion(region).access(r.Context(), who, token, connection)
	if err != nil {
		return domain.Server{}, err
	}
	return h.svc.Get(r.Context(), a, id)
}

func connectionID(text string) (uuid.UUID, error) {
	id, err := uuid.Parse(text)
	if err != nil || len(text) != 36 || id == uuid.Nil {
		return uuid.Nil, apperr.Malformed("connection_id", "a connection's id, a UUID", text)
	}
	return id, nil
}

func pathID(r *http.Request) (string, error) {
	id, err := serverID("id", r.PathValue("id"))
	if err != nil {
		return "", apperr.New(apperr.NotFound, "there is no server %q: a server's id is a UUID", r.PathValue("id"))
	}
	return id, nil
}

func serverID(field, text string) (string, error) {
	id, err := uuid.Parse(text)
	if err != nil || len(text) != 36 {
		return "", apperr.Malformed(field, "a server's id, a UUID", text)
	}
	return strings.ToLower(id.String()), nil
}
