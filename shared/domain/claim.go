package domain

import (
	"errors"
	"time"

	"github.com/google/uuid"
)

// Claim is one replica's right to work on a row until it expires, so that a replica that died blocks nobody. Every
// write of that work carries its ID, and fails with ErrFenced once another replica has claimed the row.
type Claim struct {
	ID       uuid.UUID
	Acquired bool      // false: another replica has it, or there is nothing left to do
	Fresh    bool      // the order was stored just now, so nobody has asked Nova for its servers yet
	At       time.Time // when a fresh order was stored, by the database's clock
	// Requested is before the claim began, by this process's clock.
	Requested time.Time
}

// NewClaim is a claim that is about to be acquired.
func NewClaim() Claim { return Claim{ID: uuid.New(), Requested: time.Now()} }

// ErrFenced says that another replica has claimed the row since: stop working at once.
var ErrFenced = errors.New("another replica has claimed the row")
