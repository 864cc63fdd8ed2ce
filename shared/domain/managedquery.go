package domain

import (
	"time"

	"github.com/google/uuid"
)

// NewManaged is a declaration to store.
type NewManaged struct {
	// Managed has what is declared: project, user, kind, name, provider, flavor, spec, labels, schedule, repair,
	// max_revisions, the actor, the sealed secrets and their digest. The id is the stored one's, or for a new one.
	Managed
	// Before is the version of the stored resource that the request was made from; 0 = nothing was stored.
	Before int64
	// KeepSecrets says that the secrets of the current revision stay.
	KeepSecrets bool
	// Repeats is the revision that it takes spec, flavor, labels, schedule and secrets from; 0 = none.
	Repeats int
	// PerProject is how many resources the project may have with this one, if it is new; 0 = unlimited.
	PerProject int
	// Delegation is how reconcile-managed acts in the user's name.
	Delegation ManagedDelegation
}

// ManagedDelegation is what a user has delegated for managed resources: a stored connection, or a new one.
type ManagedDelegation struct {
	ConnectionID uuid.UUID   // stored; zero with New
	New          *Connection // nil = ConnectionID
	// Kinds are those that New suffices for. It also replaces what the user has delegated for them with fewer roles.
	Kinds []Kind
	// Until is when a stored connection has to end at the earliest, to be used instead of New.
	Until time.Time
}

// ManagedQuery selects resources of a project.
type ManagedQuery struct {
	Kind     Kind                // "" = all
	Labels   map[string]string   // that it has
	Without  []map[string]string // that it has not
	Name     string              // a part of its name, in any case
	Statuses []ManagedStatus     // none = all
	Limit    int
	Marker   uuid.UUID // the last one before the page
}

// FlavorQuery selects resource flavors of a project.
type FlavorQuery struct {
	Kind   Kind // "" = all
	Limit  int
	Marker string // the last name before the page
}
