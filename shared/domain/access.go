package domain

import (
	"time"

	"github.com/google/uuid"
)

// Access is who acts, in which project, and what is permitted there. The edge resolves it once for each request.
type Access struct {
	Identity   Identity   // who asked
	ProjectID  string     // whose orders and servers
	DomainID   string     // of that project
	Connection Connection // acted through; zero = the caller acts for itself, which has no limits of ours
	ResolvedAt time.Time  // by the database's clock, for a connection's end; zero without one
}

// OwnAccess is that of a caller who acts for its own project.
func OwnAccess(who Identity) Access {
	return Access{Identity: who, ProjectID: who.ProjectID, DomainID: who.DomainID}
}

// DelegatedAccess is that of a caller who acts through a connection, at the moment now.
func DelegatedAccess(who Identity, c Connection, now time.Time) Access {
	return Access{Identity: who, ProjectID: c.ProjectID, DomainID: c.DomainID, Connection: c, ResolvedAt: now}
}

// Filter selects the orders and instances within reach.
func (a Access) Filter() Filter { return Filter{ProjectID: a.ProjectID, ConnectionID: a.Connection.ID} }

// Actor is who acts, as events show it.
func (a Access) Actor() *Actor { return ActorOf(a.Identity, a.Connection.ID) }

// Permits refuses what the connection does not permit. OpenStack decides for a caller who acts for itself.
func (a Access) Permits(wanted ...Permission) error {
	if a.Connection.ID == uuid.Nil {
		return nil
	}
	return a.Connection.Permits(a.ResolvedAt, wanted...)
}
