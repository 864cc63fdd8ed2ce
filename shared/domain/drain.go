package domain

import (
	"time"

	"github.com/google/uuid"
)

// DrainStatus is how far a drain is.
type DrainStatus string

// The statuses of a drain. Only a running one changes.
const (
	DrainRunning   DrainStatus = "running"
	DrainCancelled DrainStatus = "cancelled" // what Nova was asked to move already is followed to its end
	DrainDone      DrainStatus = "done"      // every server has moved or is skipped
	DrainFailed    DrainStatus = "failed"    // the host is down, or is not cordoned any more
)

// The limits of a drain, and of its defaults in watch-nodes' settings.
const (
	MaxDrainParallel   = 20
	MinDrainServerTime = 10 * time.Second
	MaxDrainServerTime = 24 * time.Hour
)

// Drain moves the servers off a host.
type Drain struct {
	ID            uuid.UUID
	Node          string
	Status        DrainStatus
	Reason        string
	IsAutomatic   bool   // after the node's auto_drain_after
	RequestedBy   string // the user id of the admin
	Actor         *Actor
	Parallel      int           // how many servers move at a time; 0 = as watch-nodes has it
	ServerTimeout time.Duration // for how long one server may move; 0 = as watch-nodes has it
	Attempts      int           // of reading the host, which fails
	DueAt         time.Time     // zero = it is over
	CreatedAt     time.Time
	UpdatedAt     time.Time
	EndedAt       time.Time
	Servers       []DrainServer
}

// DrainServerStatus is how far one server of a drain is.
type DrainServerStatus string

// The statuses of a server of a drain. The last two are final, but for a server that comes back.
const (
	DrainPending    DrainServerStatus = "pending"
	DrainMigrating  DrainServerStatus = "migrating"  // Nova was asked to move it
	DrainConfirming DrainServerStatus = "confirming" // it has moved, and its migration is to be confirmed
	DrainMoved      DrainServerStatus = "moved"      // Nova shows it on another host
	DrainSkipped    DrainServerStatus = "skipped"
)

// The methods of moving a server.
const (
	LiveMigration = "live"
	ColdMigration = "cold"
)

// DrainServer is a server of a drain.
type DrainServer struct {
	ServerID  string
	Name      string
	ProjectID string
	Method    string // "" = not chosen yet, or skipped
	Status    DrainServerStatus
	Reason    string // why it is skipped, or waits
	Target    string // the host that it is on now
	Attempts  int
	BegunAt   time.Time // when Nova was asked
	EndedAt   time.Time
}

// Counts returns how many servers of the drain are done, left and skipped.
func (d Drain) Counts() (moved, left, skipped int) {
	for _, s := range d.Servers {
		switch s.Status {
		case DrainMoved:
			moved++
		case DrainSkipped:
			skipped++
		default:
			left++
		}
	}
	return moved, left, skipped
}

// DrainProgress is how many servers of a drain have moved, are still to move, and stay.
type DrainProgress struct {
	Node        string
	IsAutomatic bool
	Moved       int
	Unmoved     int
	Skipped     int
}
