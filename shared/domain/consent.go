package domain

import (
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// RequestStatus is how far a request for a connection has come.
type RequestStatus string

// The statuses of a request for a connection. Only pending is not final.
const (
	RequestPending   RequestStatus = "pending"
	RequestGranted   RequestStatus = "granted"   // its connection is made
	RequestDeclined  RequestStatus = "declined"  // by the project that it was sent to
	RequestWithdrawn RequestStatus = "withdrawn" // by the project that has sent it
	RequestExpired   RequestStatus = "expired"   // nobody has decided in time
)

// RequestStatuses lists every status, for messages and checks.
func RequestStatuses() []string {
	return []string{string(RequestPending), string(RequestGranted), string(RequestDeclined), string(RequestWithdrawn), string(RequestExpired)}
}

// RequestMoves are the statuses that may follow each status of a request for a connection.
var RequestMoves = map[RequestStatus][]RequestStatus{
	RequestPending:   {RequestGranted, RequestDeclined, RequestWithdrawn, RequestExpired},
	RequestGranted:   {},
	RequestDeclined:  {},
	RequestWithdrawn: {},
	RequestExpired:   {},
}

// Grantee is who would be named in usable_by of a connection that is asked for.
type Grantee string

// The grantees.
const (
	GranteeUser    Grantee = "user"    // who asks
	GranteeProject Grantee = "project" // the project of who asks
)

// Bounds of requests for connections. What is over counts only for the day's.
const (
	MaxRequestsFrom = 20  // that are pending, of a project that asks
	MaxRequestsTo   = 100 // that are pending, to a project
	MaxRequestsADay = 100 // that a project makes within 24 hours, whatever became of them

	// RequestTime is how long a request waits for a decision.
	RequestTime = 14 * 24 * time.Hour
)

// Terms are how far a connection goes, as it is asked for or granted.
type Terms struct {
	Actions   []Permission
	Quota     ConnectionQuota
	Limits    ConnectionLimits
	ExpiresAt time.Time     // zero = Duration says it
	Duration  time.Duration // from the grant on
}

// End is when a connection ends that is granted now.
func (t Terms) End(now time.Time) time.Time {
	if t.ExpiresAt.IsZero() {
		return now.Add(t.Duration).UTC().Truncate(time.Microsecond)
	}
	return t.ExpiresAt
}

// ConnectionRequest is what somebody asks a project to delegate.
type ConnectionRequest struct {
	ID            uuid.UUID
	ProjectID     string   // whose servers
	Requester     Identity // who asks: ids and names of the user and the project
	Grantee       Grantee
	Name          string
	Why           string // anybody's text: shown as text, and never as anything else
	Terms         Terms
	Status        RequestStatus
	Reason        string // why it was declined
	DecidedBy     string // the user who granted, declined or withdrew it
	ConnectionID  uuid.UUID
	GrantedSHA256 []byte // of what was granted
	ExpiresAt     time.Time
	CreatedAt     time.Time
	UpdatedAt     time.Time
}

// UsableBy is the id of the grantee.
func (r ConnectionRequest) UsableBy() string {
	if r.Grantee == GranteeProject {
		return r.Requester.ProjectID
	}
	return r.Requester.UserID
}

// Received says whether the caller is of the project that the request was sent to.
func (r ConnectionRequest) Received(who Identity) bool { return who.ProjectID == r.ProjectID }

// Sent says whether the caller is of the project that has sent the request.
func (r ConnectionRequest) Sent(who Identity) bool { return who.ProjectID == r.Requester.ProjectID }

// Grant says how far a connection goes that is granted of what is asked for: what given leaves out is granted as it is asked for. It refuses
// more than that.
func (t Terms) Grant(given Terms, now time.Time) (granted Terms, err error) {
	granted = Terms{Actions: t.Actions, ExpiresAt: t.End(now)}
	if given.Actions != nil {
		granted.Actions = given.Actions
	}
	for _, p := range granted.Actions {
		if !slices.Contains(t.Actions, p) {
			return granted, apperr.InvalidField("actions", fmt.Sprintf("has the action %q, which is not asked for", p), permissionNames(t.Actions)...)
		}
	}
	for _, line := range []struct {
		field        string
		asked, given *int
		into         **int
	}{
		{"quota.instances", t.Quota.Instances, given.Quota.Instances, &granted.Quota.Instances},
		{"quota.vcpus", t.Quota.VCPUs, given.Quota.VCPUs, &granted.Quota.VCPUs},
		{"quota.ram_mb", t.Quota.RAMMB, given.Quota.RAMMB, &granted.Quota.RAMMB},
	} {
		*line.into = line.asked
		if line.given == nil {
			continue
		}
		if *line.into = line.given; line.asked != nil && *line.given > *line.asked {
			return granted, apperr.InvalidField(line.field, fmt.Sprintf("is %d, and only %d is asked for: must be 0 to %d", *line.given, *line.asked, *line.asked))
		}
	}
	if granted.Limits, err = t.Limits.Narrow(given.Limits, false); err != nil {
		return granted, err
	}
	if given.ExpiresAt.IsZero() {
		return granted, nil
	}
	if given.ExpiresAt.After(granted.ExpiresAt) {
		return granted, apperr.InvalidField("expires_at", fmt.Sprintf("is %s, which is later than what is asked for: must not be after %s",
			given.ExpiresAt.Format(time.RFC3339Nano), granted.ExpiresAt.Format(time.RFC3339Nano)))
	}
	granted.ExpiresAt = given.ExpiresAt
	return granted, nil
}

func permissionNames(all []Permission) []string {
	names := make([]string, len(all))
	for n, p := range all {
		names[n] = string(p)
	}
	return names
}

// ConnectionRequestQuery is which requests for connections are listed.
type ConnectionRequestQuery struct {
	Received bool     // those that were sent to the caller's project; else those that it has sent
	Statuses []string // none is all
	Limit    int
	Marker   uuid.UUID // the last id already seen; zero = none
}

// Grant is a request that is being granted, by one replica at a time.
type Grant struct {
	ProjectID string
	RequestID uuid.UUID
	Claim     uuid.UUID
	UserID    string // who grants
	SHA256    []byte // of what is granted
}
