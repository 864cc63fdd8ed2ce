package domain

import (
	"time"

	"github.com/google/uuid"
)

// Access is who acts, in which project, and what is permitted there. The edge resolves it once for each request.
type Access struct {
	Identity   Identity   // the caller
	ProjectID  string     // the project of the orders and servers
	DomainID   string     // of the project
	Connection Connection // zero = the caller uses its own token, without limits of ours
	ResolvedAt time.Time  // by the database's clock, for a connection's end; zero without one
}

// OwnAccess returns the access of a caller to its own project.
func OwnAccess(who Identity) Access {
	return Access{Identity: who, ProjectID: who.ProjectID, DomainID: who.DomainID}
}

// DelegatedAccess returns the access of a caller through a connection.
func DelegatedAccess(who Identity, c Connection, now time.Time) Access {
	return Access{Identity: who, ProjectID: c.ProjectID, DomainID: c.DomainID, Connection: c, ResolvedAt: now}
}

// Filter selects the orders and instances that the caller may see.
func (a Access) Filter() Filter { return Filter{ProjectID: a.ProjectID, ConnectionID: a.Connection.ID} }

// Actor returns the caller as events show it.
func (a Access) Actor() *Actor { return ActorOf(a.Identity, a.Connection.ID) }

// Permits fails if the connection does not permit the actions. Without a connection OpenStack decides.
func (a Access) Permits(wanted ...Permission) error {
	if a.Connection.ID == uuid.Nil {
		return nil
	}
	return a.Connection.Permits(a.ResolvedAt, wanted...)
}
