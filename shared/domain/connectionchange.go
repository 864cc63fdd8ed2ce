package domain

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
)

// ErrChanged says that another request has changed the object since it was read.
var ErrChanged = errors.New("it has been changed since it was read")

// OldTrust is a trust without a connection: another trust has replaced it, or its connection was never stored.
type OldTrust struct {
	ID           uuid.UUID // ours
	ProjectID    string
	ConnectionID uuid.UUID // that had it, or was to have it
	UserID       string    // the trustor
	TrustID      string    // in Keystone; "" = unknown whether it was made
	// ExpiresAt is when Keystone ends it. Without a TrustID it identifies the trust among the user's.
	ExpiresAt time.Time
}

// Changed lists the fields in which two versions of a connection differ, by their sorted names in the API.
func (c Connection) Changed(to Connection) []string {
	fields := map[string]bool{
		"name":         c.Name != to.Name,
		"expires_at":   !c.ExpiresAt.Equal(to.ExpiresAt),
		"idle_timeout": c.IdleTimeout != to.IdleTimeout,
		"quota":        !c.Quota.equal(to.Quota),
		"limits":       !c.Limits.equal(to.Limits),
		"usable_by":    !slices.Equal(c.UsableBy, to.UsableBy),
		"actions":      !slices.Equal(c.Actions, to.Actions),
		"id":           c.Kind == CredentialConnection && c.DelegationID != to.DelegationID,
		"secret":       to.Secret != nil,
	}
	maps.DeleteFunc(fields, func(_ string, differs bool) bool { return !differs })
	return slices.Sorted(maps.Keys(fields))
}

// Widens lists the fields in which the other version of the connection permits more, or for longer.
func (c Connection) Widens(to Connection) (fields []string) {
	for _, p := range to.Actions {
		if !slices.Contains(c.Actions, p) {
			fields = append(fields, "actions")
			break
		}
	}
	if to.ExpiresAt.After(c.ExpiresAt) {
		fields = append(fields, "expires_at")
	}
	if to.IdleTimeout != c.IdleTimeout && c.IdleTimeout != 0 &&
		(to.IdleTimeout == 0 || to.IdleTimeout > c.IdleTimeout) {
		fields = append(fields, "idle_timeout")
	}
	if more(c.Quota.Instances, to.Quota.Instances) || more(c.Quota.VCPUs, to.Quota.VCPUs) ||
		more(c.Quota.RAMMB, to.Quota.RAMMB) {
		fields = append(fields, "quota")
	}
	if c.Limits.widens(to.Limits) {
		fields = append(fields, "limits")
	}
	for _, id := range to.UsableBy {
		if !slices.Contains(c.UsableBy, id) {
			fields = append(fields, "usable_by")
			break
		}
	}
	return fields
}

// more reports whether a limit is higher than before; nil = unlimited.
func more(before, after *int) bool { return before != nil && (after == nil || *after > *before) }

func (q ConnectionQuota) equal(other ConnectionQuota) bool {
	same := func(a, b *int) bool { return a == b || a != nil && b != nil && *a == *b }
	return same(q.Instances, other.Instances) && same(q.VCPUs, other.VCPUs) && same(q.RAMMB, other.RAMMB)
}

// MayWiden reports whether the caller, of the connection's project, may widen it: the delegating user, or a user with
// all of the roles that it acts with in this cloud. Anyone else would gain roles by it.
func (c Connection) MayWiden(who Identity) bool {
	if who.UserID == c.UserID {
		return true
	}
	for _, role := range c.ActsAs.Roles {
		if !slices.Contains(who.Roles, role) {
			return false
		}
	}
	return len(c.ActsAs.Roles) > 0 && c.AuthURL == ""
}
