package connections

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// creation is the body of POST /v1/connections.
type creation struct {
	Name        string                 `json:"name"`
	Kind        string                 `json:"kind"`
	Roles       *[]string              `json:"roles"`
	ID          *string                `json:"id"`
	Secret      *domain.Secret         `json:"secret"`
	AuthURL     *string                `json:"auth_url"`
	Region      *string                `json:"region"`
	Actions     []domain.Permission    `json:"actions"`
	Quota       domain.ConnectionQuota `json:"quota"`
	Limits      *limitsRequest         `json:"limits"`
	UsableBy    []usableEntry          `json:"usable_by"`
	ExpiresAt   string                 `json:"expires_at"`
	IdleTimeout *string                `json:"idle_timeout"`
}

// What the request's texts may have at most.
const (
	maxRoles  = 50
	maxText   = 255 // the connection's name, and ids and names of Keystone
	maxSecret = 1024
	leastIdle = time.Hour
	mostIdle  = 8784 * time.Hour // a leap year
)

// wish is a connection as it is asked for, and what it takes to have it.
type wish struct {
	domain.Connection
	roles  []string      // of the trust
	secret domain.Secret // of the application credential
	grant  *domain.Grant // of the request that it is made for; nil = nobody has asked for it
	names  []nameOf      // of UsableBy, which are still to be looked up
}

// wish checks all that can be checked without asking anybody. Whether the end is in the future only the database's clock knows.
func (c creation) wish(who domain.Identity) (w wish, err error) {
	w.Connection = domain.Connection{
		ProjectID: who.ProjectID, DomainID: who.DomainID, UserID: who.UserID, Name: c.Name, Kind: domain.ConnectionKind(c.Kind),
		Actions: c.Actions, Quota: c.Quota, UsableBy: []string{}, Flavors: []domain.Flavor{},
	}
	if err := plain("name", c.Name); err != nil {
		return w, err
	}
	switch w.Kind {
	case domain.TrustConnection:
		err = c.trust(&w, who)
	case domain.CredentialConnection:
		err = c.credential(&w)
	default:
		err = apperr.Unknown("kind", "kind", c.Kind, string(domain.TrustConnection), string(domain.CredentialConnection))
	}
	if err != nil {
		return w, err
	}
	for _, check := range []func(*wish) error{c.permissions, c.quotas, c.limit, c.users, c.times} {
		if err := check(&w); err != nil {
			return w, err
		}
	}
	return w, nil
}

// plain refuses a name or an id that is too long, or has in it what nobody can see.
func plain(field, text string) error { return plainText(field, text, maxText) }

func plainText(field, text string, most int) error {
	if utf8.RuneCountInString(text) > most || strings.ContainsFunc(text, unicode.IsControl) {
		return apperr.InvalidField(field, fmt.Sprintf("must be text of %d characters at most, without control characters", most))
	}
	return nil
}

// trust takes the fields of a trust.
func (c creation) trust(w *wish, who domain.Identity) error {
	for field, given := range map[string]bool{"id": c.ID != nil, "secret": c.Secret != nil, "auth_url": c.AuthURL != nil, "region": c.Region != nil} {
		if given {
			return apperr.InvalidField(field, "does not go with the kind trust")
		}
	}
	w.roles = []string{"member"}
	if c.Roles != nil {
		w.roles = *c.Roles
	}
	mine := slices.Compact(slices.Sorted(slices.Values(who.Roles)))
	switch {
	case len(w.roles) == 0 || len(w.roles) > maxRoles:
		return apperr.InvalidField("roles", "must have some of your roles", mine...)
	case repeated(w.roles):
		return apperr.InvalidField("roles", "has a role twice")
	}
	for _, role := range w.roles {
		if !slices.Contains(mine, role) {
			return apperr.InvalidField("roles", fmt.Sprintf("has the role %.64q, which your token does not have", role), mine...)
		}
	}
	if (domain.Identity{Roles: w.roles}).MayAct() {
		return nil
	}
	return apperr.InvalidField("roles", "must have another one than reader, which only reads", mine...)
}

func repeated(list []string) bool {
	return len(slices.Compact(slices.Sorted(slices.Values(list)))) < len(list)
}

// credential takes the fields of an application credential.
func (c creation) credential(w *wish) error {
	switch {
	case c.Roles != nil:
		return apperr.InvalidField("roles", "does not go with the kind application_credential: it has its own")
	case c.ID == nil || *c.ID == "":
		return apperr.InvalidField("id", "must be the application credential's id")
	case c.Secret == nil || *c.Secret == "" || len(c.Secret.Reveal()) > maxSecret:
		return apperr.InvalidField("secret", "must be the application credential's secret")
	case c.AuthURL != nil && *c.AuthURL == "":
		return apperr.InvalidField("auth_url", "is empty: leave it out for this cloud")
	case c.Region != nil && *c.Region == "":
		return apperr.InvalidField("region", "is empty: leave it out instead")
	}
	w.DelegationID, w.secret = *c.ID, *c.Secret
	if c.AuthURL != nil {
		w.AuthURL = *c.AuthURL
	}
	if c.Region != nil {
		w.Region = *c.Region
	}
	for field, text := range map[string]string{"id": w.DelegationID, "region": w.Region} {
		if err := plain(field, text); err != nil {
			return err
		}
	}
	return nil
}

func (c creation) permissions(w *wish) error { return checkActions(w.Actions) }

// checkActions refuses an empty list of permissions, and repeated and unknown ones.
func checkActions(actions []domain.Permission) error {
	var seen []domain.Permission
	for _, p := range actions {
		if !slices.Contains(domain.Permissions(), string(p)) {
			return apperr.Unknown("actions", "action", string(p), domain.Permissions()...)
		}
		if slices.Contains(seen, p) {
			return apperr.InvalidField("actions", fmt.Sprintf("has the action %s twice", p))
		}
		seen = append(seen, p)
	}
	if len(seen) == 0 {
		return apperr.InvalidField("actions", "must have at least one", domain.Permissions()...)
	}
	return nil
}

func (c creation) quotas(w *wish) error {
	for field, most := range map[string]*int{"quota.instances": w.Quota.Instances, "quota.vcpus": w.Quota.VCPUs, "quota.ram_mb": w.Quota.RAMMB} {
		if most != nil && *most < 0 {
			return apperr.InvalidField(field, "must be 0 or more; leave it out if it is not to be counted")
		}
	}
	return nil
}

func (c creation) times(w *wish) error {
	end, err := parseEnd(c.ExpiresAt)
	if err != nil {
		return err
	}
	w.ExpiresAt = end
	if c.IdleTimeout == nil {
		return nil
	}
	w.IdleTimeout, err = parseDuration("idle_timeout", *c.IdleTimeout)
	return err
}

// parseDuration reads how long a connection lasts, or may be idle.
func parseDuration(field, text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < leastIdle || d > mostIdle {
		return 0, apperr.Malformed(field, "1h to 8784h, such as 24h or 1h30m", text)
	}
	return d, nil
}

// parseID takes the one form of a UUID that the API writes, in capitals too.
func parseID(text string) (uuid.UUID, error) {
	id, err := uuid.Parse(text)
	if err == nil && len(text) != 36 {
		err = apperr.New(apperr.Invalid, "the id has another form")
	}
	return id, err
}
