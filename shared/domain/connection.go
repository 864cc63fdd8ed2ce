package domain

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// ConnectionKind is how a connection delegates.
type ConnectionKind string

// The kinds of connections.
const (
	// TrustConnection is a Keystone trust to our service account, made with the token of the user who delegates.
	TrustConnection ConnectionKind = "trust"
	// CredentialConnection is an application credential that its owner created, in this cloud or another.
	CredentialConnection ConnectionKind = "application_credential"
)

// ConnectionStatus reports whether a connection can be used.
type ConnectionStatus string

// The statuses of a connection. Only active and suspended are not final.
const (
	ConnectionActive ConnectionStatus = "active"
	// ConnectionSuspended may not be used until it is resumed. It expires as an active one does.
	ConnectionSuspended ConnectionStatus = "suspended"
	// ConnectionExpired is past its end, or was idle for too long.
	ConnectionExpired ConnectionStatus = "expired"
	// ConnectionLost is not accepted by Keystone any more: revoked, role removed, user disabled, or secret changed.
	ConnectionLost    ConnectionStatus = "lost"
	ConnectionDeleted ConnectionStatus = "deleted" // by its owner; only its own project sees it
)

// ConnectionStatuses lists every status, for messages and checks.
func ConnectionStatuses() []string {
	return texts(ConnectionActive, ConnectionSuspended, ConnectionExpired, ConnectionLost, ConnectionDeleted)
}

// ConnectionOf is what a connection was made for, when it was not made for those who may use it.
type ConnectionOf string

// The purposes of connections.
const (
	OfLease   ConnectionOf = "lease"
	OfManaged ConnectionOf = "managed" // declared resources
)

// ConnectionsOf lists every purpose, for messages and checks.
func ConnectionsOf() []string { return texts(OfLease, OfManaged) }

// ConnectionTransitions are the statuses that may follow each status of a connection.
var ConnectionTransitions = map[ConnectionStatus][]ConnectionStatus{
	ConnectionActive:    {ConnectionSuspended, ConnectionExpired, ConnectionLost, ConnectionDeleted},
	ConnectionSuspended: {ConnectionActive, ConnectionExpired, ConnectionLost, ConnectionDeleted},
	ConnectionExpired:   {ConnectionDeleted},
	ConnectionLost:      {ConnectionDeleted},
	ConnectionDeleted:   {},
}

// Permission is an action that a connection may permit.
type Permission string

// The permissions. Disconnecting needs none.
const (
	// MayAllocate permits to launch servers, and to reuse idle ones of the connection or marked as reusable.
	MayAllocate   Permission = "allocate"
	MayAttach     Permission = "attach"  // new volumes and floating IPs of orders, and volumes of leases
	MayConnect    Permission = "connect" // adopt any server of the project
	MayStart      Permission = "start"
	MayStop       Permission = "stop"
	MayReboot     Permission = "reboot"
	MayPause      Permission = "pause"    // and to unpause
	MaySuspend    Permission = "suspend"  // and to resume
	MayShelve     Permission = "shelve"   // MayStart permits to unshelve
	MaySnapshot   Permission = "snapshot" // make images of servers
	MayLock       Permission = "lock"     // and to unlock
	MayRename     Permission = "rename"
	MayResize     Permission = "resize"  // and to confirm and revert it
	MayRebuild    Permission = "rebuild" // wipes disks
	MayRescue     Permission = "rescue"  // and to unrescue
	MayDeploy     Permission = "deploy"
	MayDeallocate Permission = "deallocate" // delete servers
)

// Permissions lists every permission, for messages and checks.
func Permissions() []string {
	return texts(MayAllocate, MayAttach, MayConnect, MayStart, MayStop, MayReboot, MayPause, MaySuspend, MayShelve,
		MaySnapshot, MayLock, MayRename, MayResize, MayRebuild, MayRescue, MayDeploy, MayDeallocate)
}

// Connection is a stored delegation: a right to act in its owner's project, with limits.
type Connection struct {
	ID           uuid.UUID
	ProjectID    string // owns the servers and the connection
	DomainID     string
	UserID       string // the delegating user
	Name         string
	Kind         ConnectionKind
	AuthURL      string // of another cloud's Keystone; "" is this cloud
	Region       string
	DelegationID string // the trust's id, or the application credential's
	Secret       []byte // sealed; nil for a trust, and once it is wiped
	ActsAs       ActsAs
	Actions      []Permission
	Quota        ConnectionQuota
	Limits       ConnectionLimits
	UsableBy     []string       // ids of users and projects that may use it, besides the delegating user
	UsableNames  []UsableByName // the names of those given by name
	Flavors      []Flavor       // as the delegation sees them
	Status       ConnectionStatus
	Reason       string // why it ended

	TrustExpiresAt      time.Time // when Keystone ends the trust automatically
	CredentialExpiresAt time.Time // when the application credential ends, as far as Keystone shows it
	// TrustIntent is the id that announced the trust before it was made. It is not stored with the connection.
	TrustIntent uuid.UUID
	Revoked     bool // Keystone is known to have the trust no longer
	// OldTrusts counts replaced trusts that Keystone may still have. Only some queries fill it.
	OldTrusts  int
	Generation int   // grows with each new trust, credential or secret
	Seq        int64 // grows with each change that has an event

	// LeaseID is the lease that it was made for. No one else acts through it, and the API of connections only shows it.
	LeaseID uuid.UUID
	// Managed reports whether it was made for managed resources of its user. The API only shows it, too.
	Managed bool

	SuspendedAt time.Time // zero = it is not
	ResumedAt   time.Time // zero = never

	ExpiresAt   time.Time
	IdleTimeout time.Duration // it also ends this long after its last use; 0 = it does not
	LastUsedAt  time.Time     // zero = never
	CheckedAt   time.Time     // when Keystone last accepted it; zero = that is not known
	CreatedAt   time.Time
	UpdatedAt   time.Time
	Used        Need // of its quota now; only some queries fill it
}

// ActsAs is the identity of a delegation in Keystone.
type ActsAs struct {
	UserID      string   `json:"user_id"`
	UserName    string   `json:"user_name"`
	ProjectID   string   `json:"project_id"`
	ProjectName string   `json:"project_name"`
	Roles       []string `json:"roles"`
	// Unrestricted marks an application credential that may create others, which it need not.
	Unrestricted bool `json:"unrestricted,omitempty"`
}

// ReadsOnly reports whether its only role is reader.
func (a ActsAs) ReadsOnly() bool {
	return len(a.Roles) > 0 && !slices.ContainsFunc(a.Roles, func(r string) bool { return r != "reader" })
}

// Remote reports whether the connection is to another cloud or region than ours.
func (c Connection) Remote() bool { return c.AuthURL != "" || c.Region != "" }

// RegionIn returns the connection's region, given this cloud's own; "" = unknown.
func (c Connection) RegionIn(own string) string {
	if c.Remote() {
		return c.Region
	}
	return own
}

// SealedFor is the context that the connection's secret is sealed with. It includes the cloud, so that a changed row
// cannot send the secret elsewhere.
func (c Connection) SealedFor() string {
	return "connection/" + c.ProjectID + "/" + c.ID.String() + "/" + c.AuthURL
}

// EndsAt returns when the connection expires.
func (c Connection) EndsAt() time.Time {
	if c.IdleTimeout == 0 {
		return c.ExpiresAt
	}
	used := c.LastUsedAt
	if used.IsZero() {
		used = c.CreatedAt
	}
	if idle := used.Add(c.IdleTimeout); idle.Before(c.ExpiresAt) {
		return idle
	}
	return c.ExpiresAt
}

// IsOpen reports whether a connection of the status has not ended.
func (s ConnectionStatus) IsOpen() bool { return s == ConnectionActive || s == ConnectionSuspended }

// WaitingSince returns since when a request of that time has waited: the time before the connection was resumed does
// not count.
func (c Connection) WaitingSince(requested time.Time) time.Time {
	if c.ResumedAt.After(requested) {
		return c.ResumedAt
	}
	return requested
}

// Owned reports whether the caller's project owns the connection.
func (c Connection) Owned(who Identity) bool { return who.ProjectID == c.ProjectID }

// Usable reports whether the caller may use the connection: the delegating user, and users and projects in UsableBy.
// All of them need a role that permits changes. No one may use that of a lease or of managed resources.
func (c Connection) Usable(who Identity) bool {
	if c.LeaseID != uuid.Nil || c.Managed || !who.MayAct() {
		return false
	}
	return who.UserID == c.UserID && c.Owned(who) || slices.Contains(c.UsableBy, who.UserID) ||
		slices.Contains(c.UsableBy, who.ProjectID)
}

// Permits fails if the connection does not permit the actions or has ended. now is the database's clock.
func (c Connection) Permits(now time.Time, needed ...Permission) error {
	switch {
	case c.Status == ConnectionLost:
		return apperr.New(apperr.DelegationLost, "the connection cannot be used any more: %s", c.Reason)
	case c.Status == ConnectionDeleted:
		return apperr.New(apperr.Forbidden, "the connection has ended: %s", c.Reason)
	case !c.Status.IsOpen() || !now.Before(c.EndsAt()):
		return apperr.New(apperr.Forbidden, "the connection ended at %s", c.EndsAt().UTC().Format(time.RFC3339))
	case c.Status == ConnectionSuspended && len(needed) > 0: // reading is still allowed
		return apperr.New(apperr.Suspended,
			"the connection is suspended since %s: nothing is done through it until its project resumes it",
			c.SuspendedAt.UTC().Format(time.RFC3339))
	}
	missing := slices.DeleteFunc(slices.Clone(needed), func(p Permission) bool { return slices.Contains(c.Actions, p) })
	if len(missing) == 0 {
		return nil
	}
	return apperr.New(apperr.Forbidden, "the connection does not permit to %s, only to %s",
		strings.Join(texts(missing...), ", "), strings.Join(texts(c.Actions...), ", "))
}

// ConnectionQuota limits what runs through a connection at the same time; nil = unlimited.
type ConnectionQuota struct {
	Instances *int `json:"instances,omitempty"`
	VCPUs     *int `json:"vcpus,omitempty"`
	RAMMB     *int `json:"ram_mb,omitempty"`
	Volumes   *int `json:"volumes,omitempty"`   // that are made with servers
	Gigabytes *int `json:"gigabytes,omitempty"` // of them

	FloatingIPs *int `json:"floating_ips,omitempty"` // that are made for servers
}

// Check fails if more does not fit in the quota besides what is used.
func (q ConnectionQuota) Check(used, more Need) error {
	for _, line := range []struct {
		name       string
		most       *int
		used, more int
	}{
		{"instances", q.Instances, used.Instances, more.Instances},
		{"vcpus", q.VCPUs, used.VCPUs, more.VCPUs},
		{"ram_mb", q.RAMMB, used.RAMMB, more.RAMMB},
		{"volumes", q.Volumes, used.Volumes, more.Volumes},
		{"gigabytes", q.Gigabytes, used.Gigabytes, more.Gigabytes},
		{"floating_ips", q.FloatingIPs, used.FloatingIPs, more.FloatingIPs},
	} {
		if line.most != nil && line.used+line.more > *line.most {
			return apperr.New(apperr.Quota, "the connection's quota of %s is %d: %d are used, and this takes %d more",
				line.name, *line.most, line.used, line.more)
		}
	}
	return nil
}

// The limits of connections.
const (
	MaxConnections = 100 // of a project, without those that ended
	// MaxConnectionTime is the longest time of a connection.
	MaxConnectionTime = 366 * 24 * time.Hour
	// CheckEvery is the time between two checks that Keystone still accepts a delegation.
	CheckEvery = 5 * time.Minute
	// CheckEarly is by how much a check may be done earlier, together with one that is due. Spread checks would
	// keep a pod. It is less than the shortest time between two checks, 0.8 * CheckEvery.
	CheckEarly = CheckEvery / 2
	// TrustMargin is the least time by which a trust outlasts its connection: Keystone lets no one delete an expired
	// one.
	TrustMargin = 10 * time.Minute
)

// LostReason says why Keystone may have stopped accepting a delegation.
func LostReason(kind ConnectionKind) string {
	if kind == TrustConnection {
		return "Keystone does not accept the trust: it was deleted, or its user was disabled or lost the role"
	}
	return "Keystone does not accept the application credential: it was deleted or has expired, " +
		"or its user was disabled or lost the role"
}

// ErrChanged means that another request has changed the object since it was read.
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
		more(c.Quota.RAMMB, to.Quota.RAMMB) || more(c.Quota.Volumes, to.Quota.Volumes) ||
		more(c.Quota.Gigabytes, to.Quota.Gigabytes) || more(c.Quota.FloatingIPs, to.Quota.FloatingIPs) {
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
	return same(q.Instances, other.Instances) && same(q.VCPUs, other.VCPUs) && same(q.RAMMB, other.RAMMB) &&
		same(q.Volumes, other.Volumes) && same(q.Gigabytes, other.Gigabytes) && same(q.FloatingIPs, other.FloatingIPs)
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

// ConnectionQuery selects connections.
type ConnectionQuery struct {
	Usable   bool     // those that the caller may use now; else those of the caller's project
	Statuses []string // empty = all but deleted
	Of       []string // only those of leases or managed resources; empty = neither
	Limit    int
	Marker   uuid.UUID // the last id of the page before; zero = the first page
}

// Trust is a trust in Keystone.
type Trust struct {
	ID        string
	ExpiresAt time.Time // some time after the end of its connection
}

// ErrDelegatedToken is in the chain of an error when Keystone makes no trust for a token, because the token was
// delegated itself.
var ErrDelegatedToken = errors.New("the token was delegated")

// Revocation is the progress of deleting a trust.
type Revocation string

// The values of Revocation.
const (
	RevocationPending Revocation = "pending" // Keystone may still have the trust
	RevocationDone    Revocation = "done"    // Keystone has deleted it
)

// Revocation returns the progress of deleting the connection's trusts; "" while the connection is open, and for an
// application credential, which only its owner can delete.
func (c Connection) Revocation() Revocation {
	switch {
	case c.Kind != TrustConnection || c.Status.IsOpen():
		return ""
	case c.Revoked && c.OldTrusts == 0:
		return RevocationDone
	}
	return RevocationPending
}

// RemoteCloud is another cloud or region with connections.
type RemoteCloud struct{ AuthURL, Region string }

// RemoteIntervals is how often the servers of a connection to another cloud are read.
type RemoteIntervals struct {
	Usual  time.Duration
	Moving time.Duration // while Nova works on one of them
	Within time.Duration // for at most so long after the server's last change
}

// RemoteRead is a claimed read of the servers of a connection to another cloud. Zero Since and ScannedAt = never read.
type RemoteRead struct {
	Connection Connection
	Claim      Claim
	At         time.Time // the database's clock before the read
	Since      time.Time // changes before this are known
	ScannedAt  time.Time // when all servers were last read
}
