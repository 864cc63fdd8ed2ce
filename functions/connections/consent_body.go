package connections

import (
	"cmp"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// consentRequest is the body of POST /v1/connections/requests.
type consentRequest struct {
	ProjectID string                 `json:"project_id"`
	For       string                 `json:"for"`
	Name      string                 `json:"name"`
	Why       string                 `json:"why"`
	Actions   []domain.Permission    `json:"actions"`
	Quota     domain.ConnectionQuota `json:"quota"`
	Limits    *limitsRequest         `json:"limits"`
	ExpiresAt *string                `json:"expires_at"`
	Duration  *string                `json:"duration"`
}

const (
	maxWhy    = 1000
	maxReason = 1000
)

// request checks all that can be checked without asking anybody.
func (c consentRequest) request(who domain.Identity) (r domain.ConnectionRequest, err error) {
	r = domain.ConnectionRequest{
		ProjectID: c.ProjectID, Requester: who, Grantee: domain.Grantee(cmp.Or(c.For, string(domain.GranteeUser))), Name: c.Name, Why: c.Why,
		Terms: domain.Terms{Actions: c.Actions, Quota: c.Quota},
	}
	w := wish{Connection: domain.Connection{UserID: who.UserID, ProjectID: who.ProjectID, Quota: c.Quota}}
	switch {
	case !w.isID(c.ProjectID):
		return r, badProject(c.ProjectID)
	case r.Grantee != domain.GranteeUser && r.Grantee != domain.GranteeProject:
		return r, apperr.Unknown("for", "grantee", c.For, string(domain.GranteeUser), string(domain.GranteeProject))
	case strings.TrimSpace(c.Why) == "":
		return r, apperr.InvalidField("why", "is empty: it says to the project's owners what the connection is for")
	}
	for _, text := range []struct {
		field, text string
		most        int
	}{{"name", c.Name, maxText}, {"why", c.Why, maxWhy}} {
		if err := shownAsItIs(text.field, text.text, text.most); err != nil {
			return r, err
		}
	}
	if err := checkActions(c.Actions); err != nil {
		return r, err
	}
	if err := (creation{}).quotas(&w); err != nil {
		return r, err
	}
	if err := (creation{Limits: c.Limits}).limit(&w); err != nil {
		return r, err
	}
	r.Terms.Limits = w.Limits
	return r, c.times(&r.Terms)
}

func badProject(id string) error {
	return apperr.InvalidField("project_id", fmt.Sprintf("%.100q is not the id of a project (32 or 64 digits 0-9 and a-f): "+
		"`openstack project show -f value -c id NAME` prints it", id))
}

// shownAsItIs refuses, besides what plain does, what makes a text look like another one: its readers decide by it.
func shownAsItIs(field, text string, most int) error {
	if at := strings.IndexFunc(text, func(c rune) bool { return unicode.Is(unicode.Bidi_Control, c) }); at >= 0 {
		return apperr.InvalidField(field, fmt.Sprintf("has a character at byte %d that changes the direction of the text: leave it out", at))
	}
	return plainText(field, text, most)
}

// times takes the one of expires_at and duration that is given.
func (c consentRequest) times(t *domain.Terms) error {
	switch {
	case c.ExpiresAt == nil && c.Duration == nil:
		return apperr.InvalidField("expires_at", "is missing: give it, or duration, which counts from the grant")
	case c.ExpiresAt != nil && c.Duration != nil:
		return apperr.InvalidField("duration", "does not go with expires_at: give one of them")
	case c.ExpiresAt != nil:
		end, err := parseEnd(*c.ExpiresAt)
		t.ExpiresAt = end
		return err
	}
	d, err := parseDuration("duration", *c.Duration)
	t.Duration = d
	return err
}

func parseEnd(text string) (time.Time, error) {
	end, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return end, apperr.Malformed("expires_at", "a time in RFC 3339, such as 2026-01-02T03:04:05Z", text)
	}
	return end.UTC().Truncate(time.Microsecond), nil // which is all that Postgres and Keystone keep
}

// granting is the body of POST /v1/connections/requests/{id}/grant: that of POST /v1/connections without usable_by. What it leaves out is
// granted as it is asked for.
type granting struct {
	Name        *string                `json:"name"`
	Kind        string                 `json:"kind"`
	Roles       *[]string              `json:"roles"`
	ID          *string                `json:"id"`
	Secret      *domain.Secret         `json:"secret"`
	AuthURL     *string                `json:"auth_url"`
	Region      *string                `json:"region"`
	Actions     []domain.Permission    `json:"actions"`
	Quota       domain.ConnectionQuota `json:"quota"`
	Limits      *limitsRequest         `json:"limits"`
	ExpiresAt   *string                `json:"expires_at"`
	IdleTimeout *string                `json:"idle_timeout"`
}

// wish is the connection that is granted of a request. It is never more than the request asks for.
func (g granting) wish(who domain.Identity, r domain.ConnectionRequest, now time.Time) (w wish, err error) {
	given := domain.Terms{Actions: g.Actions, Quota: g.Quota}
	if g.ExpiresAt != nil {
		if given.ExpiresAt, err = parseEnd(*g.ExpiresAt); err != nil {
			return w, err
		}
	}
	if g.Actions != nil {
		if err := checkActions(g.Actions); err != nil {
			return w, err
		}
	}
	var limited wish
	if err := (creation{Limits: g.Limits}).limit(&limited); err != nil {
		return w, err
	}
	given.Limits = limited.Limits
	terms, err := r.Terms.Grant(given, now)
	if err != nil {
		return w, err
	}
	name := r.Name
	if g.Name != nil {
		name = *g.Name
	}
	w, err = creation{
		Name: name, Kind: cmp.Or(g.Kind, string(domain.TrustConnection)), Roles: g.Roles, ID: g.ID, Secret: g.Secret,
		AuthURL: g.AuthURL, Region: g.Region,
		Actions: terms.Actions, Quota: terms.Quota, ExpiresAt: terms.ExpiresAt.Format(time.RFC3339Nano), IdleTimeout: g.IdleTimeout,
	}.wish(who)
	w.UsableBy, w.Limits = []string{r.UsableBy()}, terms.Limits
	return w, err
}

// declining is the body of POST /v1/connections/requests/{id}/decline.
type declining struct {
	Reason string `json:"reason"`
}
