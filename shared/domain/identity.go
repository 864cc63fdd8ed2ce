// Package domain holds the types and rules of cloudfn that know no technology: who calls, what a
// server, an order and an hour of statistics are, and how their states follow from one another.
package domain

import (
	"slices"
	"time"
)

// Identity is who calls, as Keystone confirmed it.
type Identity struct {
	UserID      string
	UserName    string
	ProjectID   string // "" unless the token is scoped to a project
	ProjectName string
	DomainID    string // the project's domain, or the domain the token is scoped to
	System      bool   // scoped to the whole system
	Roles       []string
	ExpiresAt   time.Time
}

// Has says whether the identity holds any of the roles.
func (i Identity) Has(roles ...string) bool {
	return slices.ContainsFunc(roles, func(r string) bool { return slices.Contains(i.Roles, r) })
}

// MayAct says whether the identity may do more than look: it has a role besides OpenStack's reader.
func (i Identity) MayAct() bool {
	return slices.ContainsFunc(i.Roles, func(r string) bool { return r != "reader" })
}

// CloudAdmin says whether OpenStack would let the identity see every project: the admin role (of any
// project: OpenStack knows no other), or a reader of the whole system.
func (i Identity) CloudAdmin() bool {
	return i.Has("admin") && i.ProjectID != "" || i.System && i.Has("admin", "reader")
}

// DomainReader says whether the identity may see every project of its domain: a token scoped to the
// domain, with a role that can read.
func (i Identity) DomainReader() bool {
	return i.ProjectID == "" && i.DomainID != "" && i.Has("admin", "manager", "member", "reader")
}
