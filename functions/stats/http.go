package stats

import (
	"bufio"
	"context"
	"encoding/csv"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
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
	h := handler{s}
	describe(api)
	httpx.Serve[statsInput, statsOutput](api, huma.Operation{
		OperationID: "getStats", Method: http.MethodGet, Path: "/v1/stats", Tags: []string{"stats"},
		Summary: "Servers per full hour",
		Responses: httpx.Answers(map[int]string{
			200: "The hours, in the representation that `Accept` selects.",
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
	httpx.PageRequest
	Marker httpx.ID         `query:"marker" example:"019b7c5e-7bd4-703e-8325-28b622c8c15f" doc:"The last id before."`
	Since  httpx.Time       `query:"since" example:"2026-01-02T00:00:00Z" doc:"Only rows from then on, in RFC 3339."`
	Acted  connectionFilter `query:"acted_through" example:"019b7c5e-1f20-7a31-b5d4-0c7e2f9a6b13"`

	Only domain.RequestKind `query:"only" enum:"changes,errors" example:"errors"`
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
	q := domain.RequestQuery{
		Limit: in.Limit, Marker: in.Marker.UUID, Since: in.Since.Time, Acted: in.Acted != "", Only: in.Only,
	}
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
	page, err := httpx.ReadPage(ctx, in.Limit, func(limit int) ([]domain.Request, error) {
		q.Limit = limit
		return h.svc.requests.List(ctx, q)
	}, func(r domain.Request) string { return r.ID.String() })
	if err != nil {
		return httpx.Response{}, err
	}
	shown := httpx.Each(page.Items, func(r domain.Request) Request { return show(q.View, r) })
	return httpx.JSON(http.StatusOK, RequestPage{shown, page.Next}, "Vary", "Accept, X-Auth-Token",
		"Link", httpx.Link(page.Next))
}

// Stats are the hours of a scope.
type Stats struct {
	Scope     domain.Scope      `json:"scope"`
	ProjectID string            `json:"project_id,omitempty" minLength:"1" doc:"The project of scope=project."`
	DomainID  string            `json:"domain_id,omitempty" minLength:"1" doc:"The domain of the scope."`
	From      time.Time         `json:"from" doc:"The first hour."`
	To        time.Time         `json:"to" doc:"The last hour."`
	Complete  bool              `json:"complete" doc:"No hour is missing. Hours may still have uncertain servers."`
	Hours     []domain.HourStat `json:"hours" minItems:"1" maxItems:"720"`
}

// RequestPage is a page of the request log.
type RequestPage struct {
	Requests []Request `json:"requests" maxItems:"1000"`
	Next     *string   `json:"next" pattern:"^/v1/requests\\?" doc:"The next page, without a host. Null at the end."`
}

// Request is one row of the request log.
type Request struct {
	ID       uuid.UUID `json:"id" doc:"Version 7, in the order of time."`
	At       time.Time `json:"at" doc:"When the row was written, by the database's clock."`
	Function string    `json:"function" doc:"Empty when no function serves the path."`
	Method   string    `json:"method" minLength:"1"`
	Path     string    `json:"path" minLength:"1" doc:"Without the query. 1024 bytes at most, cut off after that."`

	Status    int    `json:"status" minimum:"200" maximum:"599" doc:"499 when the client hung up before the answer."`
	MS        int    `json:"ms" minimum:"0" doc:"How long the request took, in milliseconds."`
	UserID    string `json:"user_id" doc:"Empty when the token was refused or none was needed."`
	UserName  string `json:"user_name,omitempty" minLength:"1" doc:"The user's name, as Keystone said it."`
	ProjectID string `json:"project_id" doc:"Empty like user_id, and for a token that is not scoped to a project."`
	DomainID  string `json:"domain_id" doc:"The domain of the project or of the token. Empty like user_id."`
	RequestID string `json:"request_id" pattern:"^req-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"`
	Remote    string `json:"remote" doc:"The client's address, or the proxy's. Empty in another project's row."`

	Code apperr.Code `json:"code,omitempty" doc:"The code of the problem, when the answer was one."`

	Count int `json:"count" minimum:"1" doc:"How many requests the row stands for. Those over a limit may share a row."`

	ConnectionID uuid.UUID `json:"connection_id,omitzero" doc:"The connection that the request acted through."`
	ActedIn      string    `json:"acted_in,omitempty" minLength:"1" doc:"The connection's project."`
}

// show is a row as the view is entitled to see it.
func show(v domain.View, f domain.Request) Request {
	out := Request{
		ID: f.ID, At: f.At, Function: f.Function, Method: f.Method, Path: f.Path, Status: f.Status,
		MS: int(f.Duration.Milliseconds()), UserID: f.UserID, UserName: f.UserName, ProjectID: f.ProjectID,
		DomainID: f.DomainID, Count: f.Count,
		RequestID: f.RequestID, Code: apperr.Code(f.Code), ConnectionID: f.Used.ConnectionID, ActedIn: f.Used.ProjectID,
	}
	if v.ShowsOrigin(f) {
		out.Remote = f.Remote
	}
	return out
}

// describe says what the types' tags cannot.
func describe(api huma.API) {
	httpx.Enum[domain.Scope](api, "Scope", "project", "domain", "cloud")
	httpx.Enum[domain.Source](api, "", "sampled", "rebuilt", "missing")
}

// The content types of an export, which has all rows and not a page of them.
const (
	csvType    = "text/csv"
	ndjsonType = "application/x-ndjson"
)

// rowWriter writes rows of an export.
type rowWriter struct {
	write func(Request) error
	flush func() error
}

// export answers with all rows that the query selects; limit is the most (0 = all). Its first rows are read before
// the answer begins, so that an error with them is answered as a problem.
func (h handler) export(ctx context.Context, q domain.RequestQuery, kind string, limit int) (httpx.Response, error) {
	first, err := h.svc.exportPage(ctx, &q, limit)
	if err != nil {
		return httpx.Response{}, err
	}
	resp := httpx.Response{Status: http.StatusOK, ContentType: kind, Header: http.Header{}}
	name := "requests.ndjson"
	if kind == csvType {
		resp.ContentType, name = csvType+"; charset=utf-8; header=present", "requests.csv"
	}
	resp.Header.Set("Content-Disposition", `attachment; filename="`+name+`"`)
	resp.Header.Set("Vary", "Accept, X-Auth-Token")
	resp.Stream = func(ctx context.Context, w io.Writer) error {
		out := newRowWriter(kind, w)
		for page, left := first, limit; len(page) > 0; {
			for _, row := range page {
				if err := out.write(show(q.View, row)); err != nil {
					return err
				}
			}
			if err := out.flush(); err != nil {
				return err
			}
			if left -= len(page); limit > 0 && left <= 0 || len(page) < exportPage {
				break
			}
			if page, err = h.svc.exportPage(ctx, &q, left); err != nil {
				return err
			}
		}
		return out.flush()
	}
	return resp, nil
}

func newRowWriter(kind string, w io.Writer) rowWriter {
	if kind == csvType {
		out := csv.NewWriter(w)
		out.UseCRLF = true // RFC 4180
		_ = out.Write(csvHead)
		write := func(r Request) error { return out.Write(csvRow(r)) }
		return rowWriter{write, func() error { out.Flush(); return out.Error() }}
	}
	buffer := bufio.NewWriter(w)
	lines := json.NewEncoder(buffer)
	lines.SetEscapeHTML(false)
	return rowWriter{func(r Request) error { return lines.Encode(r) }, buffer.Flush}
}

// csvHead are the columns: the fields of a row in JSON.
var csvHead = []string{
	"id", "at", "function", "method", "path", "status", "ms", "user_id", "user_name", "project_id", "domain_id",
	"request_id", "remote", "code", "connection_id", "acted_in", "count",
}

func csvRow(r Request) []string {
	row := []string{
		r.ID.String(), r.At.Format(time.RFC3339Nano), r.Function, r.Method, r.Path, strconv.Itoa(r.Status),
		strconv.Itoa(r.MS), r.UserID, r.UserName, r.ProjectID, r.DomainID, r.RequestID, r.Remote, string(r.Code),
		text(r.ConnectionID), r.ActedIn, strconv.Itoa(r.Count),
	}
	for i, cell := range row {
		row[i] = domain.CSVCell(cell)
	}
	return row
}

func text(id uuid.UUID) string {
	if id == uuid.Nil {
		return ""
	}
	return id.String()
}
