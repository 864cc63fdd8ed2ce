package connections

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/auth"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

// CreateConnection is the body of POST /v1/connections.
type CreateConnection struct {
	Name plainText             `json:"name,omitempty"`
	Kind domain.ConnectionKind `json:"kind"`
	Delegation
	Actions     []domain.Permission `json:"actions" minItems:"1" uniqueItems:"true"`
	Quota       *QuotaRequest       `json:"quota,omitempty"`
	Limits      *LimitsRequest      `json:"limits,omitempty"`
	UsableBy    []UsableEntry       `json:"usable_by,omitempty" nullable:"true" maxItems:"100"`
	ExpiresAt   httpx.Time          `json:"expires_at" doc:"Until when: in the future, and 366 days ahead at most."`
	IdleTimeout *duration           `json:"idle_timeout,omitempty" nullable:"true"`
}

// Resolve implements huma.Resolver.
func (c *CreateConnection) Resolve(ctx huma.Context) []error {
	return append(c.check(ctx.Context(), c.Kind), checkUsable(c.UsableBy)...)
}

// Delegation is what a user hands over: some roles for a trust, or an application credential.
type Delegation struct {
	Roles   []string       `json:"roles,omitempty" nullable:"true" minItems:"1" maxItems:"50" uniqueItems:"true"`
	ID      *plainText     `json:"id,omitempty" nullable:"true" minLength:"1"`
	Secret  *domain.Secret `json:"secret,omitempty" nullable:"true" minLength:"1" maxLength:"1024"`
	AuthURL *string        `json:"auth_url,omitempty" nullable:"true" minLength:"1"`
	Region  *plainText     `json:"region,omitempty" nullable:"true" minLength:"1"`
}

// check finds the fields that do not fit the kind of connection.
func (d Delegation) check(ctx context.Context, kind domain.ConnectionKind) (faults []error) {
	fault := func(isFault bool, field, detail string, allowed ...string) {
		if isFault {
			faults = append(faults, apperr.InvalidField(field, detail, allowed...))
		}
	}
	switch kind {
	case domain.TrustConnection:
		const other = "cannot be combined with the kind trust"
		fault(d.ID != nil, "id", other)
		fault(d.Secret != nil, "secret", other)
		fault(d.AuthURL != nil, "auth_url", other)
		fault(d.Region != nil, "region", other)
		who := auth.CallerOrNone(ctx)
		own := slices.Compact(slices.Sorted(slices.Values(who.Roles)))
		for _, role := range d.Roles {
			fault(!slices.Contains(own, role), "roles",
				fmt.Sprintf("has the role %.64q, which your token does not have", role), own...)
		}
		may := func(role string) bool { return slices.Contains(who.WriteRoles, role) }
		fault(d.Roles != nil && !slices.ContainsFunc(d.Roles, may), "roles",
			"must have a role that permits changes", who.WriteRoles...)
	case domain.CredentialConnection:
		fault(d.Roles != nil, "roles",
			"cannot be combined with the kind application_credential: the credential has its own")
		fault(d.ID == nil, "id", "must be the application credential's id")
		faults = append(faults, checkCredentialID(d.ID)...)
		fault(d.Secret == nil, "secret", "must be the application credential's secret")
	}
	return faults
}

func checkCredentialID(id *plainText) []error {
	if err := domain.CheckStorable("id", string(domain.Deref(id))); err != nil {
		return []error{err}
	}
	return nil
}

// draft is a connection before it is stored, and what storing it takes.
type draft struct {
	domain.Connection
	roles  []string      // of the trust
	secret domain.Secret // of the application credential
	grant  *domain.Grant // the request that it is created for; nil without one
	names  []UsableName  // of UsableBy, which Keystone has to resolve
}

func (c CreateConnection) draft(who domain.Identity) draft {
	d := draft{
		Connection: domain.Connection{
			ProjectID: who.ProjectID, DomainID: who.DomainID, UserID: who.UserID, Name: string(c.Name), Kind: c.Kind,
			DelegationID: string(domain.Deref(c.ID)), AuthURL: domain.Deref(c.AuthURL),
			Region: string(domain.Deref(c.Region)), Actions: c.Actions,
			Quota: domain.ConnectionQuota(domain.Deref(c.Quota)), Limits: domain.Deref(c.Limits).limits(),
			Flavors: []domain.Flavor{}, ExpiresAt: moment(c.ExpiresAt),
			IdleTimeout: domain.Deref(c.IdleTimeout).value(),
		},
		roles: c.Roles, secret: domain.Deref(c.Secret),
	}
	if d.roles == nil {
		d.roles = []string{"member"}
	}
	d.UsableBy, d.names = split(c.UsableBy)
	return d
}

// moment has the precision that Postgres and Keystone keep.
func moment(t httpx.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }

// QuotaRequest is `quota` of a request.
type QuotaRequest struct {
	Instances *int `json:"instances,omitempty" nullable:"true" minimum:"0"`
	VCPUs     *int `json:"vcpus,omitempty" nullable:"true" minimum:"0"`
	RAMMB     *int `json:"ram_mb,omitempty" nullable:"true" minimum:"0" doc:"Memory, in MiB."`
	Volumes   *int `json:"volumes,omitempty" nullable:"true" minimum:"0" doc:"That are made with servers."`
	Gigabytes *int `json:"gigabytes,omitempty" nullable:"true" minimum:"0" doc:"Of these volumes."`

	FloatingIPs *int `json:"floating_ips,omitempty" nullable:"true" minimum:"0" doc:"That are made for servers."`
}

// LimitsRequest is `limits` of a request.
type LimitsRequest struct {
	Images   []httpx.ID  `json:"images,omitempty" nullable:"true" minItems:"1" maxItems:"100" doc:"Ids of images."`
	Networks []httpx.ID  `json:"networks,omitempty" nullable:"true" minItems:"1" maxItems:"100" doc:"Ids of networks."`
	Flavors  []plainText `json:"flavors,omitempty" nullable:"true" minItems:"1" maxItems:"100" minLength:"1"`
	Regions  []plainText `json:"regions,omitempty" nullable:"true" minItems:"1" maxItems:"100" minLength:"1"`
}

func (l LimitsRequest) limits() domain.ConnectionLimits {
	text := func(t plainText) string { return string(t) }
	return domain.ConnectionLimits{
		Images: distinct(l.Images, httpx.ID.String), Networks: distinct(l.Networks, httpx.ID.String),
		Flavors: distinct(l.Flavors, text), Regions: distinct(l.Regions, text),
	}
}

// distinct leaves out what is repeated.
func distinct[T any](list []T, text func(T) string) (values []string) {
	for _, item := range list {
		if value := text(item); !slices.Contains(values, value) {
			values = append(values, value)
		}
	}
	return values
}

// CreateConnectionRequest is the body of POST /v1/connections/requests.
type CreateConnectionRequest struct {
	ProjectID string              `json:"project_id" doc:"The project that owns the servers."`
	For       domain.Grantee      `json:"for,omitempty"`
	Name      displayText         `json:"name,omitempty" maxLength:"255"`
	Why       displayText         `json:"why" minLength:"1" maxLength:"1000"`
	Actions   []domain.Permission `json:"actions" minItems:"1" uniqueItems:"true"`
	Quota     *QuotaRequest       `json:"quota,omitempty"`
	Limits    *LimitsRequest      `json:"limits,omitempty"`
	ExpiresAt *httpx.Time         `json:"expires_at,omitempty" nullable:"true"`
	Duration  *duration           `json:"duration,omitempty" nullable:"true" doc:"Counts from the grant: 1h to 8784h."`
}

// Resolve implements huma.Resolver.
func (c *CreateConnectionRequest) Resolve(ctx huma.Context) (faults []error) {
	if c.ProjectID != "" && !isKeystoneID(auth.CallerOrNone(ctx.Context()), c.ProjectID) {
		faults = append(faults, badProject(c.ProjectID))
	}
	if c.Why != "" && strings.TrimSpace(string(c.Why)) == "" {
		faults = append(faults, apperr.InvalidField("why",
			"is empty: it tells the project's owners what the connection is for"))
	}
	switch {
	case c.ExpiresAt == nil && c.Duration == nil:
		faults = append(faults, apperr.InvalidField("expires_at",
			"is missing: give it, or duration, which counts from the grant"))
	case c.ExpiresAt != nil && c.Duration != nil:
		faults = append(faults, apperr.InvalidField("duration", "cannot be combined with expires_at: give one of them"))
	}
	return faults
}

func badProject(id string) error {
	return apperr.InvalidField("project_id",
		fmt.Sprintf("%.100q is not the id of a project (32 or 64 digits 0-9 and a-f): "+
			"`openstack project show -f value -c id NAME` prints it", id))
}

func (c CreateConnectionRequest) request(who domain.Identity) domain.ConnectionRequest {
	r := domain.ConnectionRequest{
		ProjectID: c.ProjectID, Requester: who, Grantee: cmp.Or(c.For, domain.GranteeUser), Name: string(c.Name),
		Why: string(c.Why),
		Terms: domain.Terms{
			Actions: c.Actions, Quota: domain.ConnectionQuota(domain.Deref(c.Quota)),
			Limits: domain.Deref(c.Limits).limits(), Duration: domain.Deref(c.Duration).value(),
		},
	}
	if c.ExpiresAt != nil {
		r.Terms.ExpiresAt = moment(*c.ExpiresAt)
	}
	return r
}

// GrantConnectionRequest is the body of POST /v1/connections/requests/{id}/grant: CreateConnection without usable_by.
// What it leaves out is granted as requested.
type GrantConnectionRequest struct {
	Name *plainText            `json:"name,omitempty" nullable:"true"`
	Kind domain.ConnectionKind `json:"kind,omitempty"`
	Delegation
	Actions     []domain.Permission `json:"actions,omitempty" nullable:"true" minItems:"1" uniqueItems:"true"`
	Quota       *QuotaRequest       `json:"quota,omitempty"`
	Limits      *LimitsRequest      `json:"limits,omitempty"`
	ExpiresAt   *httpx.Time         `json:"expires_at,omitempty" nullable:"true" doc:"Not later than requested."`
	IdleTimeout *duration           `json:"idle_timeout,omitempty" nullable:"true"`
}

// Resolve implements huma.Resolver.
func (g *GrantConnectionRequest) Resolve(ctx huma.Context) []error {
	return g.check(ctx.Context(), g.kind())
}

func (g GrantConnectionRequest) kind() domain.ConnectionKind {
	return cmp.Or(g.Kind, domain.TrustConnection)
}

// draft is the connection that grants a request. It never permits more than was requested.
func (g GrantConnectionRequest) draft(who domain.Identity, r domain.ConnectionRequest, now time.Time) (draft, error) {
	given := domain.Terms{
		Actions: g.Actions, Quota: domain.ConnectionQuota(domain.Deref(g.Quota)),
		Limits: domain.Deref(g.Limits).limits(),
	}
	if g.ExpiresAt != nil {
		given.ExpiresAt = moment(*g.ExpiresAt)
	}
	terms, err := r.Terms.Grant(given, now)
	if err != nil {
		return draft{}, err
	}
	name := plainText(r.Name)
	if g.Name != nil {
		name = *g.Name
	}
	d := CreateConnection{
		Name: name, Kind: g.kind(), Delegation: g.Delegation, Actions: terms.Actions,
		Quota: (*QuotaRequest)(&terms.Quota), ExpiresAt: httpx.Time{Time: terms.ExpiresAt}, IdleTimeout: g.IdleTimeout,
	}.draft(who)
	d.Limits, d.UsableBy = terms.Limits, []string{r.UsableBy()}
	return d, nil
}

// DeclineConnectionRequest is the body of POST /v1/connections/requests/{id}/decline.
type DeclineConnectionRequest struct {
	Reason displayText `json:"reason,omitempty" maxLength:"1000" doc:"Plain text, which the requester sees."`
}

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
	Volumes   int `json:"volumes" minimum:"0" doc:"That were made with the instances."`
	Gigabytes int `json:"gigabytes" minimum:"0" doc:"Of these volumes."`

	FloatingIPs int `json:"floating_ips" minimum:"0" doc:"That were made for the instances."`
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
	warnUnrestricted = "the application credential is unrestricted: its holder can create others like it, which " +
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

// RequestedTerms are what a request for a connection has.
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
