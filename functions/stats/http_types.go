package stats

import (
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

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
	httpx.DescribeAs[domain.Scope, scopeSchema](api)
	httpx.DescribeAs[domain.Source, sourceSchema](api)
}

type scopeSchema struct{}

// Schema implements huma.SchemaProvider.
func (scopeSchema) Schema(r huma.Registry) *huma.Schema {
	return httpx.SharedSchema(r, "Scope", huma.Schema{Type: huma.TypeString, Enum: []any{"project", "domain", "cloud"}})
}

type sourceSchema struct{}

// Schema implements huma.SchemaProvider.
func (sourceSchema) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Enum: []any{"sampled", "rebuilt", "missing"}}
}
