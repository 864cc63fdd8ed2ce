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
	ProjectID string
	DomainID  string
	RequestID string // req-<uuid>, the same in X-Request-Id and at OpenStack
	Remote    string // the client's address, without its port
	Code      string // the problem's code, "" for an answer that is none
}

// RequestQuery selects rows of the request log.
type RequestQuery struct {
	View   View
	Since  time.Time // zero = no bound
	Limit  int
	Marker uuid.UUID // the last id already seen; zero = from the newest
}
