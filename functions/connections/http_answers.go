package connections

import (
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// ConnectionPage is a page of connections.
type ConnectionPage struct {
	Connections []Connection `json:"connections" maxItems:"1000"`
	Next        *string      `json:"next" pattern:"^/v1/connections\\?" doc:"The next page. Null at the end."`
}

// SuggestedAccessRules are the rules that an application credential needs.
type SuggestedAccessRules struct {
	Rules []domain.AccessRule `json:"suggested_access_rules" minItems:"1"`
}

// Connection is a connection as the caller may see it: without its secret, and without the id of its trust.
type Connection struct {
	ID          uuid.UUID               `json:"id" doc:"Version 7, in the order of time."`
	Name        string                  `json:"name" maxLength:"255"`
	Kind        domain.ConnectionKind   `json:"kind"`
	AuthURL     string                  `json:"auth_url,omitempty" minLength:"1"`
	Region      string                  `json:"region,omitempty" minLength:"1"`
	Status      domain.ConnectionStatus `json:"status"`
	Reason      string                  `json:"reason,omitempty" minLength:"1" doc:"Why it has ended."`
	ActsAs      *ConnectionIdentity     `json:"acts_as,omitempty"`
	Actions     []domain.Permission     `json:"actions" uniqueItems:"true" doc:"None for declared resources."`
	Quota       domain.ConnectionQuota  `json:"quota"`
	Used        ConnectionUse           `json:"used"`
	Limits      domain.ConnectionLimits `json:"limits"`
	UsableBy    []string                `json:"usable_by,omitzero" maxItems:"100"`
	UsableNames []domain.UsableByName   `json:"usable_by_names,omitempty" minItems:"1" maxItems:"20"`
	UserID      string                  `json:"user_id" minLength:"1" doc:"The user who has delegated it."`
	ProjectID   string                  `json:"project_id" minLength:"1" doc:"The project owning it and its servers."`
	LeaseID     uuid.UUID               `json:"lease_id,omitzero" doc:"The lease that it was made for and ends with."`
	Managed     bool                    `json:"managed,omitempty" doc:"It was made for declared resources."`
	Revocation  domain.Revocation       `json:"revocation,omitempty"`
	TrustEnd    time.Time               `json:"trust_expires_at,omitzero"`
	Credential  time.Time               `json:"credential_expires_at,omitzero"`
	SuspendedAt time.Time               `json:"suspended_at,omitzero" doc:"Since when it is suspended."`
	ExpiresAt   time.Time               `json:"expires_at"`
	EndsAt      time.Time               `json:"ends_at"`
	IdleTimeout string                  `json:"idle_timeout,omitempty" minLength:"2"`
	LastUsedAt  nullTime                `json:"last_used_at" doc:"When it was last used."`
	CheckedAt   nullTime                `json:"checked_at" doc:"When Keystone last accepted it."`
	CreatedAt   time.Time               `json:"created_at"`
	UpdatedAt   time.Time               `json:"updated_at"`
	Rules       []domain.AccessRule     `json:"suggested_access_rules,omitempty" minItems:"1"`
	Warnings    []string                `json:"warnings,omitempty" minItems:"1" minLength:"1"`
}

// ConnectionIdentity is the user, project and roles that OpenStack sees when a connection is used.
type ConnectionIdentity struct {
	UserID      string   `json:"user_id" minLength:"1"`
	UserName    string   `json:"user_name"`
	ProjectID   string   `json:"project_id" minLength:"1"`
	ProjectName string   `json:"project_name"`
	Roles       []string `json:"roles"`
}

// ConnectionUse is how much of its quota a connection uses.
type ConnectionUse struct {
	Instances int `json:"instances" minimum:"0"`
	VCPUs     int `json:"vcpus" minimum:"0"`
	RAMMB     int `json:"ram_mb" minimum:"0" doc:"Memory, in MiB."`
}

// nullTime is null while it is zero.
type nullTime struct{ time.Time }

// MarshalJSON implements json.Marshaler.
func (t nullTime) MarshalJSON() ([]byte, error) {
	if t.IsZero() {
		return []byte("null"), nil
	}
	return t.Time.MarshalJSON()
}

// Schema implements huma.SchemaProvider.
func (nullTime) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{OneOf: []*huma.Schema{{Ref: "#/components/schemas/Time"}, {Type: "null"}}}
}

// Warnings to the owner of a connection.
const (
	warnAdmin = "it acts with the role admin, to which OpenStack shows the images and networks of every project: " +
		"delegate member instead"
	warnUnrestricted = "the application credential is unrestricted: whoever has it can create others like it, which " +
		"outlive it; " +
		"use a restricted one"
	warnReader = "it acts with the role reader alone: servers can be connected and read through it, and not changed"
)

// show is a connection as the caller may see it. Callers of other projects see what they need to act through it.
func show(who domain.Identity, c domain.Connection) Connection {
	out := Connection{
		ID: c.ID, Name: c.Name, Kind: c.Kind, AuthURL: c.AuthURL, Region: c.Region, Status: c.Status, Reason: c.Reason,
		Actions: c.Actions, Quota: c.Quota, Limits: c.Limits, Used: ConnectionUse(c.Used), UserID: c.UserID,
		ProjectID: c.ProjectID, LeaseID: c.LeaseID, Managed: c.Managed, ExpiresAt: c.ExpiresAt, EndsAt: c.EndsAt(),
		IdleTimeout: short(c.IdleTimeout),
		LastUsedAt:  nullTime{c.LastUsedAt}, CheckedAt: nullTime{c.CheckedAt},
		CreatedAt: c.CreatedAt, UpdatedAt: c.UpdatedAt,
	}
	if c.Status == domain.ConnectionSuspended {
		out.SuspendedAt = c.SuspendedAt
	}
	if !c.Owned(who) {
		return out
	}
	a := c.ActsAs
	out.ActsAs = &ConnectionIdentity{a.UserID, a.UserName, a.ProjectID, a.ProjectName, a.Roles}
	out.UsableBy, out.UsableNames, out.Rules = c.UsableBy, c.UsableNames, domain.AccessRules(c.Actions)
	out.Revocation, out.TrustEnd, out.Credential = c.Revocation(), c.TrustExpiresAt, c.CredentialExpiresAt
	if a.Unrestricted {
		out.Warnings = append(out.Warnings, warnUnrestricted)
	}
	if a.ReadsOnly() {
		out.Warnings = append(out.Warnings, warnReader)
	}
	if slices.Contains(a.Roles, "admin") {
		out.Warnings = append(out.Warnings, warnAdmin)
	}
	return out
}

// short is a duration as people write it; "" for none.
func short(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return domain.ShortTime(d)
}

// ConnectionCheck reports whether a connection works.
type ConnectionCheck struct {
	ID        uuid.UUID               `json:"id"`
	Works     *bool                   `json:"works" nullable:"true" doc:"Null while that is not known."`
	Status    domain.ConnectionStatus `json:"status"`
	Reason    string                  `json:"reason,omitempty" minLength:"1" doc:"Why it has ended."`
	Roles     []string                `json:"roles" doc:"The roles that it acts with."`
	ActsAs    *ConnectionIdentity     `json:"acts_as,omitempty"`
	ExpiresAt time.Time               `json:"expires_at"`
	EndsAt    time.Time               `json:"ends_at"`
	CheckedAt nullTime                `json:"checked_at" doc:"When Keystone last accepted it."`
}

func showCheck(who domain.Identity, c domain.Connection, works *bool) ConnectionCheck {
	shown := show(who, c)
	roles := c.ActsAs.Roles
	if roles == nil {
		roles = []string{}
	}
	return ConnectionCheck{
		ID: c.ID, Works: works, Status: c.Status, Reason: c.Reason, Roles: roles, ActsAs: shown.ActsAs,
		ExpiresAt: shown.ExpiresAt,
		EndsAt:    shown.EndsAt, CheckedAt: shown.CheckedAt,
	}
}

// ConnectionRequestPage is a page of requests for connections.
type ConnectionRequestPage struct {
	Requests []ConnectionRequest `json:"requests" maxItems:"1000"`
	Next     *string             `json:"next" pattern:"^/v1/connections/requests\\?" doc:"The next page, or null."`
}

// ConnectionRequest is a request for a connection.
type ConnectionRequest struct {
	ID           uuid.UUID            `json:"id" doc:"Version 7, in the order of time."`
	Status       domain.RequestStatus `json:"status"`
	ProjectID    string               `json:"project_id" minLength:"1" doc:"The project that owns the servers."`
	RequestedBy  Requester            `json:"requested_by"`
	For          domain.Grantee       `json:"for"`
	Name         string               `json:"name" maxLength:"255"`
	Why          string               `json:"why" minLength:"1" maxLength:"1000"`
	Terms        RequestedTerms       `json:"terms"`
	Reason       string               `json:"reason,omitempty" minLength:"1" maxLength:"1000" doc:"Why it is declined."`
	DecidedBy    string               `json:"decided_by,omitempty" minLength:"1"`
	ConnectionID uuid.UUID            `json:"connection_id,omitzero" doc:"The connection that grants it."`
	ExpiresAt    time.Time            `json:"expires_at" doc:"Until when it can be granted."`
	CreatedAt    time.Time            `json:"created_at"`
	UpdatedAt    time.Time            `json:"updated_at"`
}

// Requester is the user and the project that request a connection, as Keystone reports them.
type Requester struct {
	UserID      string `json:"user_id" minLength:"1"`
	UserName    string `json:"user_name"`
	ProjectID   string `json:"project_id" minLength:"1"`
	ProjectName string `json:"project_name"`
}

// RequestedTerms are what a request for a connection asks for.
type RequestedTerms struct {
	Actions   []domain.Permission     `json:"actions" minItems:"1" uniqueItems:"true"`
	Quota     domain.ConnectionQuota  `json:"quota"`
	Limits    domain.ConnectionLimits `json:"limits"`
	ExpiresAt time.Time               `json:"expires_at,omitzero"`
	Duration  string                  `json:"duration,omitempty" minLength:"2" doc:"How long it lasts once granted."`
}

// showRequest is a request as the caller may see it. Only the project that has decided it sees which user did.
func showRequest(who domain.Identity, r domain.ConnectionRequest) ConnectionRequest {
	out := ConnectionRequest{
		ID: r.ID, Status: r.Status, ProjectID: r.ProjectID, For: r.Grantee, Name: r.Name, Why: r.Why, Reason: r.Reason,
		RequestedBy: Requester{
			r.Requester.UserID, r.Requester.UserName, r.Requester.ProjectID, r.Requester.ProjectName,
		},
		Terms: RequestedTerms{
			Actions: r.Terms.Actions, Quota: r.Terms.Quota, Limits: r.Terms.Limits, ExpiresAt: r.Terms.ExpiresAt,
			Duration: short(r.Terms.Duration),
		},
		ConnectionID: r.ConnectionID, ExpiresAt: r.ExpiresAt, CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt,
	}
	if r.Status == domain.RequestWithdrawn && r.Sent(who) || r.Status != domain.RequestWithdrawn && r.Received(who) {
		out.DecidedBy = r.DecidedBy
	}
	return out
}
