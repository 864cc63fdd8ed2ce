package domain

import (
	"time"

	"github.com/google/uuid"
)

// Request is one row of the request log: one API call, answered or refused.
// It never holds a token, a password, a query string or a body.
type Request struct {
	ID        uuid.UUID // version 7
	At        time.Time // when the row was written, by the database's clock
	Function  string    // "" when no function serves the path
	Method    string
	Path      string
	Status    int
	Duration  time.Duration // from the first byte read to the row written
	UserID    string        // "" when the token was refused
	UserName  string        // as Keystone said it; "" in rows of older versions
	ProjectID string
	DomainID  string
	RequestID string // req-<uuid>, the same in X-Request-Id and at OpenStack
	Remote    string // the client's address, without its port
	Code      string // the problem's code, "" for an answer that is none

	Through ActedThrough // zero = the request acted through no connection
}

// RequestQuery selects rows of the request log.
type RequestQuery struct {
	View   View
	Since  time.Time // zero = no bound
	Limit  int
	Marker uuid.UUID // the last id already seen; zero = from the newest
	// Acted selects by where a request acted through a connection, and not by whose token it was made with: the View is
	// that of the connection. ConnectionID is the one connection; zero = any.
	Acted        bool
	ConnectionID uuid.UUID
}

// ShowsOrigin says whether the view is entitled to see where a request came from: not of one that somebody of another
// project made through a connection.
func (v View) ShowsOrigin(r Request) bool {
	switch v.Scope {
	case ScopeProject:
		return r.ProjectID == v.ProjectID
	case ScopeDomain:
		return r.DomainID == v.DomainID
	}
	return v.Scope == ScopeCloud
}
