package domain

import (
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// RequestStatus is the status of a request for a connection.
type RequestStatus string

// The statuses of a request for a connection. Only pending is not final.
const (
	RequestPending   RequestStatus = "pending"
	RequestGranted   RequestStatus = "granted"   // its connection exists
	RequestDeclined  RequestStatus = "declined"  // by the project that received it
	RequestWithdrawn RequestStatus = "withdrawn" // by the project that sent it
	RequestExpired   RequestStatus = "expired"   // without a decision in time
)

// RequestStatuses lists every status, for messages and checks.
func RequestStatuses() []string {
	return texts(RequestPending, RequestGranted, RequestDeclined, RequestWithdrawn, RequestExpired)
}

// RequestTransitions are the statuses that may follow each status of a request for a connection.
var RequestTransitions = map[RequestStatus][]RequestStatus{
	RequestPending:   {RequestGranted, RequestDeclined, RequestWithdrawn, RequestExpired},
	RequestGranted:   {},
	RequestDeclined:  {},
	RequestWithdrawn: {},
	RequestExpired:   {},
}

// Grantee says who may use a requested connection.
type Grantee string

// The grantees.
const (
	GranteeUser    Grantee = "user"    // the requesting user
	GranteeProject Grantee = "project" // the requesting project
)

// The limits of requests for connections.
const (
	MaxRequestsFrom = 20  // pending requests that a project has sent
	MaxRequestsTo   = 100 // pending requests that a project has received
	MaxRequestsADay = 100 // requests by a project within 24 hours, in whatever status

	// RequestTime is how long a request stays pending.
	RequestTime = 14 * 24 * time.Hour
)

// Terms are the requested or granted permissions of a connection.
type Terms struct {
	Actions   []Permission
	Quota     ConnectionQuota
	Limits    ConnectionLimits
	ExpiresAt time.Time     // zero = see Duration
	Duration  time.Duration // from the grant
}

// End returns when a connection that is granted now expires.
func (t Terms) End(now time.Time) time.Time {
	if t.ExpiresAt.IsZero() {
		return now.Add(t.Duration).UTC().Truncate(time.Microsecond)
	}
	return t.ExpiresAt
}

// ConnectionRequest is a request that a project delegates.
type ConnectionRequest struct {
	ID            uuid.UUID
	ProjectID     string   // that received it
	Requester     Identity // ids and names of the user and the project
	Grantee       Grantee
	Name          string
	Why           string // untrusted text
	Terms         Terms
	Status        RequestStatus
	Reason        string // of declining it
	DecidedBy     string // the user who granted, declined or withdrew it
	ConnectionID  uuid.UUID
	GrantedSHA256 []byte // of the granted terms
	ExpiresAt     time.Time
	CreatedAt     time.Time
	UpdatedAt     time.Time
}

// UsableBy returns the grantee's id.
func (r ConnectionRequest) UsableBy() string {
	if r.Grantee == GranteeProject {
		return r.Requester.ProjectID
	}
	return r.Requester.UserID
}

// Received reports whether the caller's project received the request.
func (r ConnectionRequest) Received(who Identity) bool { return who.ProjectID == r.ProjectID }

// Sent reports whether the caller's project sent the request.
func (r ConnectionRequest) Sent(who Identity) bool { return who.ProjectID == r.Requester.ProjectID }

// Grant returns the terms of a grant: those given, and the requested ones where given has none. It fails if more is
// given than requested.
func (t Terms) Grant(given Terms, now time.Time) (granted Terms, err error) {
	granted = Terms{Actions: t.Actions, ExpiresAt: t.End(now)}
	if given.Actions != nil {
		granted.Actions = given.Actions
	}
	for _, p := range granted.Actions {
		if !slices.Contains(t.Actions, p) {
			return granted, apperr.InvalidField("actions", fmt.Sprintf("has the action %q, which was not requested", p),
				texts(t.Actions...)...)
		}
	}
	for _, line := range []struct {
		field            string
		requested, given *int
		into             **int
	}{
		{"quota.instances", t.Quota.Instances, given.Quota.Instances, &granted.Quota.Instances},
		{"quota.vcpus", t.Quota.VCPUs, given.Quota.VCPUs, &granted.Quota.VCPUs},
		{"quota.ram_mb", t.Quota.RAMMB, given.Quota.RAMMB, &granted.Quota.RAMMB},
		{"quota.volumes", t.Quota.Volumes, given.Quota.Volumes, &granted.Quota.Volumes},
		{"quota.gigabytes", t.Quota.Gigabytes, given.Quota.Gigabytes, &granted.Quota.Gigabytes},
		{"quota.floating_ips", t.Quota.FloatingIPs, given.Quota.FloatingIPs, &granted.Quota.FloatingIPs},
	} {
		*line.into = line.requested
		if line.given == nil {
			continue
		}
		if *line.into = line.given; line.requested != nil && *line.given > *line.requested {
			return granted, apperr.InvalidField(line.field,
				fmt.Sprintf("is %d, and only %d was requested: must be 0 to %d",
					*line.given, *line.requested, *line.requested))
		}
	}
	if granted.Limits, err = t.Limits.Narrow(given.Limits, false); err != nil {
		return granted, err
	}
	if given.ExpiresAt.IsZero() {
		return granted, nil
	}
	if given.ExpiresAt.After(granted.ExpiresAt) {
		return granted, apperr.InvalidField("expires_at",
			fmt.Sprintf("is %s, later than requested: must not be after %s",
				given.ExpiresAt.Format(time.RFC3339Nano), granted.ExpiresAt.Format(time.RFC3339Nano)))
	}
	granted.ExpiresAt = given.ExpiresAt
	return granted, nil
}

// ConnectionRequestQuery selects requests for connections.
type ConnectionRequestQuery struct {
	Received bool     // those that the caller's project received; else those that it sent
	Statuses []string // empty = all
	Limit    int
	Marker   uuid.UUID // the last id of the page before; zero = the first page
}

// Grant is a request that is being granted, by one replica at a time.
type Grant struct {
	ProjectID string
	RequestID uuid.UUID
	Claim     Claim
	UserID    string // the granting user
	SHA256    []byte // of the granted terms
}
