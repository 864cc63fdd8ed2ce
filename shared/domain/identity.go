// Package domain holds the types and rules of cloudfn without technology: identities, servers, orders, connections,
// events and statistics, and their state machines.
package domain

import (
	"slices"
	"strings"
	"time"
)

// Identity is the caller, as Keystone confirmed it.
type Identity struct {
	UserID      string
	UserName    string
	ProjectID   string // "" unless the token is scoped to a project
	ProjectName string
	DomainID    string // the project's domain, or the domain the token is scoped to
	System      bool   // scoped to the whole system
	Roles       []string
	WriteRoles  []string // those of Roles that permit changes; empty = the token only reads
	ExpiresAt   time.Time
	AccessRules []AccessRule // of the token's application credential; nil = none, empty = nothing is permitted
}

// Has reports whether the identity holds any of the roles.
func (i Identity) Has(roles ...string) bool {
	return slices.ContainsFunc(roles, func(r string) bool { return slices.Contains(i.Roles, r) })
}

// MayAct reports whether the identity may do more than read.
func (i Identity) MayAct() bool { return len(i.WriteRoles) > 0 }

// FewestWriteRoles returns the fewest roles that permit changes: member, or all but admin, or admin for an identity
// that has nothing else. Empty = the identity only reads.
func (i Identity) FewestWriteRoles() []string {
	var others []string
	for _, role := range i.WriteRoles {
		switch {
		case strings.EqualFold(role, "member"):
			return []string{role}
		case !strings.EqualFold(role, "admin"):
			others = append(others, role)
		}
	}
	if len(others) == 0 {
		return i.WriteRoles
	}
	return others
}

// CloudAdmin reports whether OpenStack lets the identity read every project: the role admin in any project, or a reader
// of the whole system.
func (i Identity) CloudAdmin() bool {
	return i.Has("admin") && i.ProjectID != "" || i.System && i.Has("admin", "reader")
}

// DomainReader reports whether the identity may read every project of its domain: a token scoped to the domain, with a
// role that can read.
func (i Identity) DomainReader() bool {
	return i.ProjectID == "" && i.DomainID != "" && i.Has("admin", "manager", "member", "reader")
}
