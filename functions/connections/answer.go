package connections

import (
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
)

type listAnswer struct {
	Connections []connection `json:"connections"`
	Next        *string      `json:"next"`
}

type rulesAnswer struct {
	Rules []domain.AccessRule `json:"suggested_access_rules"`
}

// connection is a connection as it is shown. The secret is not in it, nor the trust's id: whoever has that needs no more to know
// what to look for.
type connection struct {
	ID          uuid.UUID               `json:"id"`
	Name        string                  `json:"name"`
	Kind        domain.ConnectionKind   `json:"kind"`
	AuthURL     string                  `json:"auth_url,omitempty"`
	Region      string                  `json:"region,omitempty"`
	Status      domain.ConnectionStatus `json:"status"`
	Reason      string                  `json:"reason,omitempty"`
	ActsAs      *actsAs                 `json:"acts_as,omitempty"`
	Actions     []domain.Permission     `json:"actions"`
	Quota       domain.ConnectionQuota  `json:"quota"`
	Used        used                    `json:"used"`
	Limits      domain.ConnectionLimits `json:"limits"`
	UsableBy    *[]string               `json:"usable_by,omitempty"`
	UsableNames []domain.UsableByName   `json:"usable_by_names,omitempty"`
	UserID      string                  `json:"user_id"`
	ProjectID   string                  `json:"project_id"`
	Revocation  domain.Revocation       `json:"revocation,omitempty"`
	TrustEnd    *time.Time              `json:"trust_expires_at,omitempty"`
	ExpiresAt   time.Time               `json:"expires_at"`
	EndsAt      time.Time               `json:"ends_at"`
	IdleTimeout string                  `json:"idle_timeout,omitempty"`
	LastUsedAt  *time.Time              `json:"last_used_at"`
	CheckedAt   *time.Time              `json:"checked_at"`
	CreatedAt   time.Time               `json:"created_at"`
	UpdatedAt   time.Time               `json:"updated_at"`
	Rules       []domain.AccessRule     `json:"suggested_access_rules,omitempty"`
	Warnings    []string                `json:"warnings,omitempty"`
}

// actsAs is who Keystone sees at work.
type actsAs struct {
	UserID      string   `json:"user_id"`
	UserName    string   `json:"user_name"`
	ProjectID   string   `json:"project_id"`
	ProjectName string   `json:"project_name"`
	Roles       []string `json:"roles"`
}

type used struct {
	Instances int `json:"instances"`
	VCPUs     int `json:"vcpus"`
	RAMMB     int `json:"ram_mb"`
}

// administrator is what is said of what acts as an admin, whom OpenStack shows every project's things.
const administrator = "it acts with the role admin, to which OpenStack shows the images and networks of every project: delegate member instead"

// unrestricted is what is said of an application credential that may do more than it needs.
const unrestricted = "the application credential is unrestricted: whoever has it can make others like it, which outlive it; use one that is not"

// readsOnly is what is said of what has no role but reader.
const readsOnly = "it acts with the role reader alone: servers can be connected and looked at through it, and nothing can be done to them"

// show is a connection as the caller may see it. Who is of another project sees what is needed to act through it.
func show(who domain.Identity, c domain.Connection) connection {
	out := connection{
		ID: c.ID, Name: c.Name, Kind: c.Kind, AuthURL: c.AuthURL, Region: c.Region, Status: c.Status, Reason: c.Reason,
		Actions: c.Actions, Quota: c.Quota, Limits: c.Limits, Used: used(c.Used), UserID: c.UserID, ProjectID: c.ProjectID,
		ExpiresAt: c.ExpiresAt, EndsAt: c.EndsAt(), IdleTimeout: short(c.IdleTimeout), CreatedAt: c.CreatedAt, UpdatedAt: c.UpdatedAt,
	}
	if !c.LastUsedAt.IsZero() {
		out.LastUsedAt = &c.LastUsedAt
	}
	if !c.CheckedAt.IsZero() {
		out.CheckedAt = &c.CheckedAt
	}
	if !c.Owned(who) {
		return out
	}
	a := c.ActsAs
	out.ActsAs = &actsAs{UserID: a.UserID, UserName: a.UserName, ProjectID: a.ProjectID, ProjectName: a.ProjectName, Roles: a.Roles}
	out.UsableBy, out.UsableNames, out.Rules = &c.UsableBy, c.UsableNames, domain.AccessRules(c.Actions)
	out.Revocation = c.Revocation()
	if !c.TrustExpiresAt.IsZero() {
		out.TrustEnd = &c.TrustExpiresAt
	}
	if a.Unrestricted {
		out.Warnings = append(out.Warnings, unrestricted)
	}
	if a.ReadsOnly() {
		out.Warnings = append(out.Warnings, readsOnly)
	}
	if slices.Contains(a.Roles, "admin") {
		out.Warnings = append(out.Warnings, administrator)
	}
	return out
}

// short is a duration as people write it: 24h, not 24h0m0s.
func short(d time.Duration) string {
	if d == 0 {
		return ""
	}
	text := d.String()
	if trimmed, whole := strings.CutSuffix(text, "m0s"); whole {
		text = trimmed + "m"
	}
	if trimmed, whole := strings.CutSuffix(text, "h0m"); whole {
		text = trimmed + "h"
	}
	return text
}

// checkAnswer says whether a connection can be acted through.
type checkAnswer struct {
	ID        uuid.UUID               `json:"id"`
	Works     *bool                   `json:"works"` // nil = it is not known yet
	Status    domain.ConnectionStatus `json:"status"`
	Reason    string                  `json:"reason,omitempty"`
	Roles     []string                `json:"roles"`
	ActsAs    *actsAs                 `json:"acts_as,omitempty"`
	ExpiresAt time.Time               `json:"expires_at"`
	EndsAt    time.Time               `json:"ends_at"`
	CheckedAt *time.Time              `json:"checked_at"`
}

func showCheck(who domain.Identity, c domain.Connection, works *bool) checkAnswer {
	shown := show(who, c)
	roles := c.ActsAs.Roles
	if roles == nil {
		roles = []string{}
	}
	return checkAnswer{
		ID: c.ID, Works: works, Status: c.Status, Reason: c.Reason, Roles: roles, ActsAs: shown.ActsAs, ExpiresAt: shown.ExpiresAt,
		EndsAt: shown.EndsAt, CheckedAt: shown.CheckedAt,
	}
}
