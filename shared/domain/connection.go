package domain

import (
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// ConnectionKind is how a connection's right to act was given.
type ConnectionKind string

// The kinds of connections.
const (
	// TrustConnection is a Keystone trust to our service account, made with the token of whoever delegates.
	TrustConnection ConnectionKind = "trust"
	// CredentialConnection is an application credential that its owner has made, of this cloud or another.
	CredentialConnection ConnectionKind = "application_credential"
)

// ConnectionStatus is whether a connection can be acted through.
type ConnectionStatus string

// The statuses of a connection. Only active and suspended are not final: who delegates again makes a new connection.
const (
	ConnectionActive    ConnectionStatus = "active"
	ConnectionSuspended ConnectionStatus = "suspended" // nothing is done through it until it is resumed; it ends as an active one does
	ConnectionExpired   ConnectionStatus = "expired"   // its time is over, or it was not used for as long as its owner said
	ConnectionLost      ConnectionStatus = "lost"      // Keystone does not accept it any more: revoked, a role taken, a user disabled, a secret changed
	ConnectionDeleted   ConnectionStatus = "deleted"   // its owner has ended it; it is shown in its own project only
)

// ConnectionStatuses lists every status, for messages and checks.
func ConnectionStatuses() []string {
	return []string{
		string(ConnectionActive), string(ConnectionSuspended), string(ConnectionExpired), string(ConnectionLost), string(ConnectionDeleted),
	}
}

// ConnectionMoves are the statuses that may follow each status of a connection.
var ConnectionMoves = map[ConnectionStatus][]ConnectionStatus{
	ConnectionActive:    {ConnectionSuspended, ConnectionExpired, ConnectionLost, ConnectionDeleted},
	ConnectionSuspended: {ConnectionActive, ConnectionExpired, ConnectionLost, ConnectionDeleted},
	ConnectionExpired:   {ConnectionDeleted},
	ConnectionLost:      {ConnectionDeleted},
	ConnectionDeleted:   {},
}

// Permission is one thing that a connection may permit.
type Permission string

// The permissions. To disconnect takes none.
const (
	MayAllocate   Permission = "allocate" // launch servers, and reuse idle ones that were launched through the connection or are marked
	MayConnect    Permission = "connect"  // take over any server of the project, whoever made it
	MayStart      Permission = "start"
	MayStop       Permission = "stop"
	MayReboot     Permission = "reboot"
	MayDeploy     Permission = "deploy"
	MayDeallocate Permission = "deallocate" // delete servers
)

// Permissions lists every permission, for messages and checks.
func Permissions() []string {
	return []string{string(MayAllocate), string(MayConnect), string(MayStart), string(MayStop), string(MayReboot), string(MayDeploy), string(MayDeallocate)}
}

// Connection is a stored delegation: a right to act in its owner's project, and how far it goes.
type Connection struct {
	ID           uuid.UUID
	ProjectID    string // where the servers are, and who may end it
	DomainID     string
	UserID       string // who delegated
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
	UsableBy     []string       // ids of users and projects that may act through it, besides who delegated
	UsableNames  []UsableByName // of those that were given by name
	Flavors      []Flavor       // those of its cloud, as the delegation sees them
	Status       ConnectionStatus
	Reason       string // why it ended, in our words

	TrustExpiresAt      time.Time // when Keystone ends the trust by itself
	CredentialExpiresAt time.Time // when the application credential ends, as far as Keystone shows it
	TrustIntent         uuid.UUID // under which the trust was announced before it was made; only of one that is not stored yet
	Revoked             bool      // Keystone is known to have the trust no longer
	OldTrusts           int       // trusts that newer ones have replaced, and that Keystone may still have; only where it is asked for
	Generation          int       // grows with each new trust, credential or secret
	Seq                 int64     // grows with each change that has an event

	SuspendedAt time.Time // zero = it is not
	ResumedAt   time.Time // zero = never

	ExpiresAt   time.Time
	IdleTimeout time.Duration // it also ends this long after its last use; 0 = it does not
	LastUsedAt  time.Time     // zero = never
	CheckedAt   time.Time     // when Keystone last accepted it; zero = that is not known
	CreatedAt   time.Time
	UpdatedAt   time.Time
	Used        Need // of its quota, right now; only where it is asked for
}

// ActsAs is who Keystone sees at work. It is kept and shown, so it holds no secret.
type ActsAs struct {
	UserID      string   `json:"user_id"`
	UserName    string   `json:"user_name"`
	ProjectID   string   `json:"project_id"`
	ProjectName string   `json:"project_name"`
	Roles       []string `json:"roles"`
	// Unrestricted is an application credential that may make others, which is more than it needs.
	Unrestricted bool `json:"unrestricted,omitempty"`
}

// ReadsOnly says whether OpenStack surely lets it do no more than look: its only role is reader.
func (a ActsAs) ReadsOnly() bool { return len(a.Roles) > 0 && !(Identity{Roles: a.Roles}).MayAct() }

// Remote says whether the connection is to another cloud or region than ours.
func (c Connection) Remote() bool { return c.AuthURL != "" || c.Region != "" }

// RegionIn is the region in which the connection acts, given this cloud's; "" when that is not known.
func (c Connection) RegionIn(own string) string {
	if c.Remote() {
		return c.Region
	}
	return own
}

// SealedFor is the purpose that the connection's secret is sealed for: it opens for no other. The cloud is in it, so that whoever may
// write rows cannot have the secret sent elsewhere.
func (c Connection) SealedFor() string {
	return "connection/" + c.ProjectID + "/" + c.ID.String() + "/" + c.AuthURL
}

// EndsAt is when the connection ends by itself.
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

// IsOpen says whether a connection of the status has not ended.
func (s ConnectionStatus) IsOpen() bool { return s == ConnectionActive || s == ConnectionSuspended }

// WaitingSince is the moment from which on something that was asked for then has waited: the time before the connection was resumed does
// not count.
func (c Connection) WaitingSince(asked time.Time) time.Time {
	if c.ResumedAt.After(asked) {
		return c.ResumedAt
	}
	return asked
}

// Owned says whether the caller is of the project in which the connection acts.
func (c Connection) Owned(who Identity) bool { return who.ProjectID == c.ProjectID }

// Usable says whether the caller may act through the connection: who delegated, and who is named in UsableBy. A project that is
// named lets in whoever may do more there than read; and who delegated needs more than a token that only reads, such as one of an
// application credential, or that would be a way to write with it.
func (c Connection) Usable(who Identity) bool {
	return who.UserID == c.UserID && c.Owned(who) && who.MayAct() || slices.Contains(c.UsableBy, who.UserID) ||
		slices.Contains(c.UsableBy, who.ProjectID) && who.MayAct()
}

// Permits refuses what the connection does not permit, and what can be done through none that has ended. now is the
// database's clock.
func (c Connection) Permits(now time.Time, wanted ...Permission) error {
	switch {
	case c.Status == ConnectionLost:
		return apperr.New(apperr.DelegationLost, "the connection cannot be acted through any more: %s", c.Reason)
	case c.Status == ConnectionDeleted:
		return apperr.New(apperr.Forbidden, "the connection has ended: %s", c.Reason)
	case !c.Status.IsOpen() || !now.Before(c.EndsAt()):
		return apperr.New(apperr.Forbidden, "the connection ended at %s", c.EndsAt().UTC().Format(time.RFC3339))
	case c.Status == ConnectionSuspended && len(wanted) > 0: // what runs through it may still be looked at
		return apperr.New(apperr.Suspended, "the connection is suspended since %s: nothing is done through it until its project resumes it",
			c.SuspendedAt.UTC().Format(time.RFC3339))
	}
	for _, p := range wanted {
		if !slices.Contains(c.Actions, p) {
			return apperr.New(apperr.Forbidden, "the connection does not permit to %s, only to %s", p, c.permitted())
		}
	}
	return nil
}

func (c Connection) permitted() string {
	names := make([]string, len(c.Actions))
	for n, p := range c.Actions {
		names[n] = string(p)
	}
	return strings.Join(names, ", ")
}

// ConnectionQuota is how much may run through a connection at once. What is nil is not counted.
type ConnectionQuota struct {
	Instances *int `json:"instances,omitempty"`
	VCPUs     *int `json:"vcpus,omitempty"`
	RAMMB     *int `json:"ram_mb,omitempty"`
}

// Check refuses what does not fit the quota besides what is used, with the numbers.
func (q ConnectionQuota) Check(used, more Need) error {
	for _, line := range []struct {
		name       string
		most       *int
		used, more int
	}{
		{"instances", q.Instances, used.Instances, more.Instances},
		{"vcpus", q.VCPUs, used.VCPUs, more.VCPUs},
		{"ram_mb", q.RAMMB, used.RAMMB, more.RAMMB},
	} {
		if line.most != nil && line.used+line.more > *line.most {
			return apperr.New(apperr.Quota, "the connection's quota of %s is %d: %d are used, and this takes %d more",
				line.name, *line.most, line.used, line.more)
		}
	}
	return nil
}

// What a connection may have at most.
const (
	MaxUsableBy    = 100
	MaxConnections = 100 // of a project, without those that ended
	// MaxConnectionTime is the longest time that something is delegated for.
	MaxConnectionTime = 366 * 24 * time.Hour
	// CheckEvery is how often Keystone is asked whether it still accepts what was delegated.
	CheckEvery = 5 * time.Minute
	// TrustSpare is how much longer a trust lasts than its connection at least: once it has expired, nobody can delete it in Keystone.
	TrustSpare = 10 * time.Minute
)

// LostReason says why Keystone does not accept a delegation any more, as far as it tells.
func LostReason(kind ConnectionKind) string {
	if kind == TrustConnection {
		return "Keystone does not accept the trust: it was deleted, or its user was disabled or lost the role"
	}
	return "Keystone does not accept the application credential: it was deleted, has expired, or its user was disabled or lost the role"
}
