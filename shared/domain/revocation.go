package domain

import (
	"time"

	"github.com/google/uuid"
)

// ConnectionQuery is which connections are listed.
type ConnectionQuery struct {
	Usable   bool     // those that the caller may act through now; else those of the caller's project
	Statuses []string // none is all but deleted
	Limit    int
	Marker   uuid.UUID // the last id already seen; zero = none
}

// Trust is a trust in Keystone.
type Trust struct {
	ID        string
	ExpiresAt time.Time // when Keystone ends it by itself, some time after its connection
}

// Revocation is how far taking a trust back has come.
type Revocation string

// What a Revocation may be.
const (
	RevocationPending Revocation = "pending" // Keystone may still have the trust
	RevocationDone    Revocation = "done"    // Keystone has it no longer
)

// Revocation is how far taking the connection's trust back has come; "" while the connection has not ended, and of an application credential,
// which only its owner can delete.
func (c Connection) Revocation() Revocation {
	switch {
	case c.Kind != TrustConnection || c.Status.IsOpen():
		return ""
	case c.Revoked && c.OldTrusts == 0:
		return RevocationDone
	}
	return RevocationPending
}
