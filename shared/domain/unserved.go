package domain

import "time"

// UnservedReason is why callbacks and connections of a project are suspended that the operator does not serve. They are
// resumed when it is served again.
const UnservedReason = "the operator does not serve the project any more"

// Remains are what a project has left in the database that still has effects.
type Remains struct {
	ProjectID string
	DomainID  string // "" = unknown
	// Since is when the project was found not to be served; zero = it is.
	Since       time.Time
	Callbacks   int // that are not gone
	Connections int // that have not ended, those of leases and managed resources included
	Instances   int // that are tracked
	Leases      int // that have not ended
	Managed     int // declared resources
	Orders      int // that are running
}
