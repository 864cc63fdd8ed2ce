package domain

import (
	"time"

	"github.com/google/uuid"
)

// Request is a row of the request log: one API call. It never holds a token, a password, a query string or a body.
type Request struct {
	ID        uuid.UUID // version 7
	At        time.Time // when the row was written, by the database's clock
	Function  string    // "" when no function serves the path
	Method    string
	Path      string
	Status    int
	Duration  time.Duration // from the first byte read to the row written
	UserID    string        // "" when the token was rejected
	UserName  string        // "" in rows of older versions
	ProjectID string
	DomainID  string
	RequestID string // req-<uuid>, as in X-Request-Id and sent to OpenStack
	Remote    string // the client's address, without its port
	Code      string // of the problem; "" = the answer is not a problem
	// Count is how many requests the row stands for: those that a rate limit refused before they were served share one
	// row per source and minute, which describes the first of them. 0 is stored as 1.
	Count int

	Used UsedConnection // zero = no connection
}

// RequestQuery selects rows of the request log.
type RequestQuery struct {
	View   View
	Since  time.Time // zero = no bound
	Limit  int
	Marker uuid.UUID // the last id of the page before; zero = the first page
	// Acted selects requests through connections: the View is of the connection, not of the token. ConnectionID is the
	// connection; zero = any.
	Acted        bool
	ConnectionID uuid.UUID
}

// ShowsOrigin reports whether the view may show where a request came from: not of a request by another project through
// a connection.
func (v View) ShowsOrigin(r Request) bool {
	switch v.Scope {
	case ScopeProject:
		return r.ProjectID == v.ProjectID
	case ScopeDomain:
		return r.DomainID == v.DomainID
	}
	return v.Scope == ScopeCloud
}
