package stats

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/auth"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

// routes declares what the function serves.
func routes(api huma.API, s service) {
	h := handler{s}
	describe(api)
	httpx.Serve[statsInput, statsOutput](api, huma.Operation{
		OperationID: "getStats", Method: http.MethodGet, Path: "/v1/stats", Tags: []string{"stats"},
		Summary: "Servers per full hour",
		Responses: httpx.Answers(map[int]string{
			200: "The hours, in the representation that `Accept` asks for.",
			403: notEntitled, 406: "",
		}),
	}, h.stats)
	httpx.Serve[requestsInput, requestsOutput](api, huma.Operation{
		OperationID: "listRequests", Method: http.MethodGet, Path: "/v1/requests", Tags: []string{"stats"},
		Summary: "Read the request log",
		Responses: httpx.Answers(map[int]string{
			200: "A page of the request log, or all of it that was selected.",
			403: notEntitled, 406: "",
		}),
	}, h.requests)
}

const notEntitled = "The token is not entitled to this scope or project, or its project is not served here."

type handler struct{ svc service }

// ViewQuery selects whose rows are shown. It is exported because huma ignores embedded types that are not.
type ViewQuery struct {
	Scope     domain.Scope `query:"scope" example:"project"`
	ProjectID string       `query:"project_id" example:"43f6e73ab2484cdd87b789e3e289627c"`
}

func (q ViewQuery) view(ctx context.Context) (domain.View, error) {
	who, _ := auth.Caller(ctx)
	return domain.NewView(who, q.Scope, q.ProjectID)
}

type statsInput struct {
	ViewQuery
	Hours int `query:"hours" minimum:"1" maximum:"720" default:"24" doc:"How many hours."`
}

type statsOutput struct {
	Vary   string  `header:"Vary" pattern:"^Accept, X-Auth-Token$" doc:"What the answer depends on."`
	Policy *string `header:"Content-Security-Policy" pattern:"^default-src 'none'; " doc:"Of the HTML page only."`
	Body   Stats
}

func (h handler) stats(ctx context.Context, in *statsInput) (httpx.Response, error) {
	kind, err := httpx.Negotiate(httpx.RequestOf(ctx), "application/json", "image/svg+xml", "text/html")
	if err != nil {
		return httpx.Response{}, err
	}
	view, err := in.view(ctx)
	if err != nil {
		return httpx.Response{}, err
	}
	found, err := h.svc.Last(ctx, view, in.Hours)
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
		resp = httpx.Response{
			Status: http.StatusOK, ContentType: "text/html; charset=utf-8", Body: page(s),
			Header: http.Header{},
		}
		resp.Header.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
	default:
		resp, err = httpx.JSON(http.StatusOK, Stats{
			Scope: s.view.Scope, ProjectID: s.view.ProjectID, DomainID: s.view.DomainID,
			From: s.hours[0].Hour, To: s.hours[len(s.hours)-1].Hour, Complete: s.complete(), Hours: s.hours,
		})
	}
	if err == nil {
		resp.Header.Set("Vary", "Accept, X-Auth-Token")
	}
	return resp, err
}

type requestsInput struct {
	ViewQuery
	httpx.Page
	Marker httpx.ID         `query:"marker" example:"019b7c5e-7bd4-703e-8325-28b622c8c15f" doc:"The last id before."`
	Since  httpx.Time       `query:"since" example:"2026-01-02T00:00:00Z" doc:"Only rows from then on, in RFC 3339."`
	Acted  connectionFilter `query:"acted_through" example:"019b7c5e-1f20-7a31-b5d4-0c7e2f9a6b13"`
}

// connectionFilter is the id of a connection, or any.
type connectionFilter string

// anyConnection selects the requests through any connection.
const anyConnection = "any"

func (a connectionFilter) connection() (uuid.UUID, error) {
	if a == "" || a == anyConnection {
		return uuid.Nil, nil
	}
	id, err := uuid.Parse(string(a))
	if err != nil || len(a) != 36 || id == uuid.Nil {
		return id, apperr.InvalidField("acted_through", `must be the id of a connection, a UUID, or "any"`,
			anyConnection)
	}
	return id, nil
}

// Resolve implements huma.Resolver.
func (a *connectionFilter) Resolve(huma.Context) []error {
	if _, err := a.connection(); err != nil {
		return []error{err}
	}
	return nil
}

type requestsOutput struct {
	Vary string  `header:"Vary" pattern:"^Accept, X-Auth-Token$" doc:"What the answer depends on."`
	Name *string `header:"Content-Disposition" doc:"The name of the file, of an export."`
	Body RequestPage
}

func (h handler) requests(ctx context.Context, in *requestsInput) (httpx.Response, error) {
	r := httpx.RequestOf(ctx)
	kind, err := httpx.Negotiate(r, "application/json", csvType, ndjsonType)
	if err != nil {
		return httpx.Response{}, err
	}
	q := domain.RequestQuery{Limit: in.Limit, Marker: in.Marker.UUID, Since: in.Since.Time, Acted: in.Acted != ""}
	if q.ConnectionID, err = in.Acted.connection(); err != nil {
		return httpx.Response{}, err
	}
	if q.View, err = in.view(ctx); err != nil {
		return httpx.Response{}, err
	}
	if kind == "application/json" {
		return h.page(ctx, in, q)
	}
	most := 0
	if r.URL.Query().Has("limit") {
		most = q.Limit
	}
	return h.export(ctx, q, kind, most)
}

func (h handler) page(ctx context.Context, in *requestsInput, q domain.RequestQuery) (httpx.Response, error) {
	found, more, err := h.svc.Requests(ctx, q)
	if err != nil {
		return httpx.Response{}, err
	}
	out := RequestPage{Requests: make([]Request, len(found))}
	for i, f := range found {
		out.Requests[i] = show(q.View, f)
	}
	if more {
		out.Next = in.Next(found[len(found)-1].ID.String())
	}
	resp, err := httpx.JSON(http.StatusOK, out)
	if err == nil {
		resp.Header.Set("Vary", "Accept, X-Auth-Token")
	}
	return resp, err
}
