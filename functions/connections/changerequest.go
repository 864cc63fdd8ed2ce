package connections

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// changeRequest is the body of PATCH /v1/connections/{id}, a JSON merge patch (RFC 7396): what is absent stays, null takes a limit away.
type changeRequest struct {
	Name        json.RawMessage `json:"name"`
	ExpiresAt   json.RawMessage `json:"expires_at"`
	IdleTimeout json.RawMessage `json:"idle_timeout"`
	Quota       parts           `json:"quota"`
	Limits      parts           `json:"limits"`
	UsableBy    json.RawMessage `json:"usable_by"`
	Actions     json.RawMessage `json:"actions"`
	ID          json.RawMessage `json:"id"`
	Secret      json.RawMessage `json:"secret"`
}

// parts are the fields of an object that is changed in part.
type parts struct {
	fields                 map[string]json.RawMessage
	isGiven, isNull, isBad bool
}

// UnmarshalJSON notes whether the field was there: null takes all limits away. What is wrong with it is said by check.
func (p *parts) UnmarshalJSON(data []byte) error {
	p.isGiven, p.isNull = true, isNull(data)
	p.isBad = json.Unmarshal(data, &p.fields) != nil
	return nil
}

// check refuses what is no object, and fields that there are not.
func (p parts) check(field, none string, known ...string) error {
	if p.isBad {
		return apperr.InvalidField(field, "must be an object, or null if nothing is to be "+none)
	}
	for name := range p.fields {
		if !slices.Contains(known, name) {
			return apperr.InvalidField(field, fmt.Sprintf("%.64q is not a field of it", name), known...)
		}
	}
	return nil
}

// given reads a field into a value, and says whether it was there. must says what it takes.
func given[T any](raw json.RawMessage, field, must string, into *T) (bool, error) {
	if raw == nil {
		return false, nil
	}
	if isNull(raw) || json.Unmarshal(raw, into) != nil {
		kind := "null"
		if !isNull(raw) {
			kind = "a value of another type" // of a secret nothing is repeated
		}
		return false, apperr.InvalidField(field, "must be "+must+", not "+kind)
	}
	return true, nil
}

func isNull(raw json.RawMessage) bool { return bytes.Equal(bytes.TrimSpace(raw), []byte("null")) }

// apply is the connection as the request would have it, as far as that can be said without asking anybody. w.secret is empty when the request
// has none.
func (r changeRequest) apply(who domain.Identity, c domain.Connection) (w wish, err error) {
	w.Connection = c
	w.Flavors, w.Secret = nil, nil // as they are
	for _, part := range []func(domain.Identity, *wish) error{r.plainFields, r.users, r.times, r.quota, r.limits, r.credential} {
		if err := part(who, &w); err != nil {
			return w, err
		}
	}
	return w, nil
}

func (r changeRequest) isEmpty() bool {
	return r.Name == nil && r.ExpiresAt == nil && r.IdleTimeout == nil && !r.Quota.isGiven && !r.Limits.isGiven && r.UsableBy == nil && r.Actions == nil && r.ID == nil && r.Secret == nil
}

func (r changeRequest) plainFields(_ domain.Identity, w *wish) error {
	if _, err := given(r.Name, "name", "text", &w.Name); err != nil {
		return err
	}
	if err := plain("name", w.Name); err != nil {
		return err
	}
	var actions []domain.Permission
	isGiven, err := given(r.Actions, "actions", "a list of actions", &actions)
	if err != nil || !isGiven {
		return err
	}
	w.Actions = actions
	return checkActions(w.Actions)
}

func (r changeRequest) users(who domain.Identity, w *wish) error {
	var in creation
	isGiven, err := given(r.UsableBy, "usable_by", "a list of ids and names", &in.UsableBy)
	if err != nil || !isGiven {
		return err
	}
	by := wish{Connection: domain.Connection{UserID: who.UserID, ProjectID: who.ProjectID, UsableBy: []string{}}}
	if err := in.users(&by); err != nil {
		return err
	}
	w.UsableBy, w.names = by.UsableBy, by.names
	w.UsableNames = slices.DeleteFunc(slices.Clone(w.UsableNames), func(n domain.UsableByName) bool { return !slices.Contains(w.UsableBy, n.ID) })
	return nil
}

// times takes the fields as they are at a creation; what is not given is as it was.
func (r changeRequest) times(_ domain.Identity, w *wish) error {
	in := creation{ExpiresAt: w.ExpiresAt.Format("2006-01-02T15:04:05.999999999Z07:00")}
	if _, err := given(r.ExpiresAt, "expires_at", "a time in RFC 3339, such as 2026-01-02T03:04:05Z", &in.ExpiresAt); err != nil {
		return err
	}
	if r.IdleTimeout != nil && isNull(r.IdleTimeout) {
		w.IdleTimeout = 0
		return in.times(w)
	}
	var idle string
	isGiven, err := given(r.IdleTimeout, "idle_timeout", "1h to 8784h, such as 24h or 1h30m, or null", &idle)
	if err != nil {
		return err
	}
	if isGiven {
		in.IdleTimeout = &idle
	}
	return in.times(w)
}

func (r changeRequest) quota(_ domain.Identity, w *wish) error {
	if err := r.Quota.check("quota", "counted", "instances", "ram_mb", "vcpus"); err != nil {
		return err
	}
	if r.Quota.isNull {
		w.Quota = domain.ConnectionQuota{}
	}
	for name, into := range map[string]**int{"instances": &w.Quota.Instances, "vcpus": &w.Quota.VCPUs, "ram_mb": &w.Quota.RAMMB} {
		raw := r.Quota.fields[name]
		if raw != nil && isNull(raw) {
			*into = nil
			continue
		}
		var most int
		isGiven, err := given(raw, "quota."+name, "a whole number, or null if it is not to be counted", &most)
		if err != nil {
			return err
		}
		if isGiven {
			*into = &most
		}
	}
	return creation{}.quotas(w)
}

func (r changeRequest) limits(_ domain.Identity, w *wish) error {
	if err := r.Limits.check("limits", "limited", "flavors", "images", "networks", "regions"); err != nil {
		return err
	}
	if r.Limits.isNull {
		w.Limits = domain.ConnectionLimits{}
	}
	var in limitsRequest
	for _, l := range []struct {
		name  string
		given **[]string
		into  *[]string
	}{
		{"images", &in.Images, &w.Limits.Images},
		{"networks", &in.Networks, &w.Limits.Networks},
		{"flavors", &in.Flavors, &w.Limits.Flavors},
		{"regions", &in.Regions, &w.Limits.Regions},
	} {
		raw := r.Limits.fields[l.name]
		if raw != nil && isNull(raw) {
			*l.into = nil
			continue
		}
		var values []string
		isGiven, err := given(raw, "limits."+l.name, "a list, or null if it is not to be limited", &values)
		if err != nil {
			return err
		}
		if isGiven {
			*l.given = &values
		}
	}
	return creation{Limits: &in}.limit(w)
}

// credential takes another secret, and with it another id.
func (r changeRequest) credential(_ domain.Identity, w *wish) error {
	if r.ID == nil && r.Secret == nil {
		return nil
	}
	if w.Kind != domain.CredentialConnection {
		field := "secret"
		if r.Secret == nil {
			field = "id"
		}
		return apperr.InvalidField(field, "does not go with the kind "+string(w.Kind)+": a trust gets another one with another expires_at")
	}
	if r.Secret == nil {
		return apperr.InvalidField("secret", "must be given with another id: the secret of that application credential")
	}
	if _, err := given(r.ID, "id", "the application credential's id", &w.DelegationID); err != nil {
		return err
	}
	if _, err := given(r.Secret, "secret", "the application credential's secret", &w.secret); err != nil {
		return err
	}
	if w.DelegationID == "" {
		return apperr.InvalidField("id", "must be the application credential's id")
	}
	if w.secret == "" || len(w.secret.Reveal()) > maxSecret {
		return apperr.InvalidField("secret", "must be the application credential's secret")
	}
	return plain("id", w.DelegationID)
}

// etag names one version of a connection.
func etag(c domain.Connection) string { return `"` + strconv.FormatInt(c.Seq, 10) + `"` }
