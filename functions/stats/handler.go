package stats

import (
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
		httpx.Handle("GET /v1/stats", h.stats),
		httpx.Handle("GET /v1/requests", h.requests),
	}
}

type statsAnswer struct {
	Scope     domain.Scope      `json:"scope"`
	ProjectID string            `json:"project_id,omitempty"`
	DomainID  string            `json:"domain_id,omitempty"`
	From      time.Time         `json:"from"` // the first hour
	To        time.Time         `json:"to"`   // the last hour
	Complete  bool              `json:"complete"`
	Hours     []domain.HourStat `json:"hours"` // oldest first, without a gap
}

const (
	defaultHours = 24
	maxHours     = 720
)

func (h handler) stats(r *http.Request) (httpx.Response, error) {
	query, err := httpx.ReadQuery(r, "hours", "scope", "project_id")
	if err != nil {
		return httpx.Response{}, err
	}
	n, err := query.Int("hours", defaultHours, 1, maxHours)
	if err != nil {
		return httpx.Response{}, err
	}
	kind, err := httpx.Negotiate(r, "application/json", "image/svg+xml", "text/html")
	if err != nil {
		return httpx.Response{}, err
	}
	view, err := viewOf(r, query)
	if err != nil {
		return httpx.Response{}, err
	}
	found, err := h.svc.Last(r.Context(), view, n)
	if err != nil {
		return httpx.Response{}, err
	}
	return render(kind, found)
}

func render(kind string, s series) (resp httpx.Response, err error) {
	switch kind {
	case "image/svg+xml":
		resp = httpx.Response{Status: http.StatusOK, ContentType: kind, Body: chart(s), Header: http.Header{}}
	case "text/html":
		resp = httpx.Response{Status: http.StatusOK, ContentType: "text/html; charset=utf-8", Body: page(s), Header: http.Header{}}
		resp.Header.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
	default:
		resp, err = httpx.JSON(http.StatusOK, statsAnswer{
			Scope: s.view.Scope, ProjectID: s.view.ProjectID, DomainID: s.view.DomainID,
			From: s.hours[0].Hour, To: s.hours[len(s.hours)-1].Hour, Complete: s.complete(), Hours: s.hours,
		})
	}
	if err == nil {
		resp.Header.Set("Vary", "Accept, X-Auth-Token")
	}
	return resp, err
}

// viewOf finds whose rows the caller asks for, and checks that it may.
func viewOf(r *http.Request, query httpx.Query) (domain.View, error) {
	scope, err := query.OneOf("scope", domain.Scopes()...)
	if err != nil {
		return domain.View{}, err
	}
	who, _ := auth.Caller(r.Context())
	return domain.NewView(who, domain.Scope(scope), query.Text("project_id"))
}

type requestsAnswer struct {
	Requests []request `json:"requests"`
	Next     *string   `json:"next"`
}

type request struct {
	ID        uuid.UUID `json:"id"`
	At        time.Time `json:"at"`
	Function  string    `json:"function"`
	Method    string    `json:"method"`
	Path      string    `json:"path"`
	Status    int       `json:"status"`
	MS        int64     `json:"ms"`
	UserID    string    `json:"user_id"`
	UserName  string    `json:"user_name,omitempty"`
	ProjectID string    `json:"project_id"`
	DomainID  string    `json:"domain_id"`
	RequestID string    `json:"request_id"`
	Remote    string    `json:"remote"`
	Code      string    `json:"code,omitempty"`

	ConnectionID *uuid.UUID `json:"connection_id,omitempty"`
	ActedIn      string     `json:"acted_in,omitempty"`
}

// show is a row as the view is entitled to see it.
func show(v domain.View, f domain.Request) request {
	out := request{
		ID: f.ID, At: f.At, Function: f.Function, Method: f.Method, Path: f.Path, Status: f.Status,
		MS: f.Duration.Milliseconds(), UserID: f.UserID, UserName: f.UserName, ProjectID: f.ProjectID, DomainID: f.DomainID,
		RequestID: f.RequestID, Code: f.Code, ActedIn: f.Through.ProjectID,
	}
	if f.Through.ConnectionID != uuid.Nil {
		out.ConnectionID = &f.Through.ConnectionID
	}
	if v.ShowsOrigin(f) {
		out.Remote = f.Remote
	}
	return out
}

func (h handler) requests(r *http.Request) (httpx.Response, error) {
	query, err := httpx.ReadQuery(r, "limit", "marker", "since", "acted_through", "scope", "project_id")
	if err != nil {
		return httpx.Response{}, err
	}
	q, err := parseRequests(query)
	if err != nil {
		return httpx.Response{}, err
	}
	kind, err := httpx.Negotiate(r, "application/json", csvType, ndjsonType)
	if err != nil {
		return httpx.Response{}, err
	}
	if q.View, err = viewOf(r, query); err != nil {
		return httpx.Response{}, err
	}
	if kind == "application/json" {
		return h.page(r, q)
	}
	most := 0
	if query.Text("limit") != "" {
		most = q.Limit
	}
	return h.export(r, q, kind, most)
}

func (h handler) page(r *http.Request, q domain.RequestQuery) (httpx.Response, error) {
	found, more, err := h.svc.Requests(r.Context(), q)
	if err != nil {
		return httpx.Response{}, err
	}
	out := requestsAnswer{Requests: make([]request, len(found))}
	for i, f := range found {
		out.Requests[i] = show(q.View, f)
	}
	if more {
		out.Next = httpx.Next(r, found[len(found)-1].ID.String())
	}
	resp, err := httpx.JSON(http.StatusOK, out)
	if err == nil {
		resp.Header.Set("Vary", "Accept, X-Auth-Token")
	}
	return resp, err
}

// anyConnection selects what was done through whichever connection.
const anyConnection = "any"

const defaultLimit = 100

func parseRequests(query httpx.Query) (q domain.RequestQuery, err error) {
	if q.Limit, err = query.Int("limit", defaultLimit, 1, httpx.MaxLimit); err != nil {
		return q, err
	}
	if text := query.Text("marker"); text != "" {
		if q.Marker, err = uuid.Parse(text); err != nil {
			return q, apperr.Malformed("marker", "the id of a request, a UUID", text)
		}
	}
	if text := query.Text("acted_through"); text != "" {
		q.Acted = true
		if text != anyConnection {
			if q.ConnectionID, err = uuid.Parse(text); err != nil || len(text) != 36 || q.ConnectionID == uuid.Nil {
				return q, apperr.Malformed("acted_through", `the id of a connection, a UUID, or "any"`, text, anyConnection)
			}
		}
	}
	if text := query.Text("since"); text != "" {
		if q.Since, err = time.Parse(time.RFC3339, text); err != nil {
			return q, apperr.Malformed("since", "a time in RFC 3339, such as 2026-01-02T03:04:05Z", text)
		}
	}
	return q, nil
}
