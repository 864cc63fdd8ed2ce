package domain

import (
	"errors"
	"time"

	"github.com/google/uuid"
)

// ConnectionQuery selects connections.
type ConnectionQuery struct {
	Usable   bool     // those that the caller may use now; else those of the caller's project
	Statuses []string // empty = all but deleted
	Of       []string // only those of leases or managed resources; empty = neither
	Limit    int
	Marker   uuid.UUID // the last id of the page before; zero = the first page
}

// Trust is a trust in Keystone.
type Trust struct {
	ID        string
	ExpiresAt time.Time // some time after the end of its connection
}

// ErrDelegatedToken is in the chain of an error when Keystone makes no trust for a token, because the token was
// delegated itself.
var ErrDelegatedToken = errors.New("the token was delegated")

// Revocation is the progress of deleting a trust.
type Revocation string

// The values of Revocation.
const (
	RevocationPending Revocation = "pending" // Keystone may still have the trust
	RevocationDone    Revocation = "done"    // Keystone has deleted it
)

// Revocation returns the progress of deleting the connection's trusts; "" while the connection is open, and for an
// application credential, which only its owner can delete.
func (c Connection) Revocation() Revocation {
	switch {
	case c.Kind != TrustConnection || c.Status.IsOpen():
		return ""
	case c.Revoked && c.OldTrusts == 0:
		return RevocationDone
	}
	return RevocationPending
}
