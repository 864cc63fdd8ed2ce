package connections

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
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
	Quota       quotaChange     `json:"quota"`
	UsableBy    json.RawMessage `json:"usable_by"`
	Actions     json.RawMessage `json:"actions"`
	ID          json.RawMessage `json:"id"`
	Secret      json.RawMessage `json:"secret"`
}

type quotaChange struct {
	Instances json.RawMessage `json:"instances"`
	VCPUs     json.RawMessage `json:"vcpus"`
	RAMMB     json.RawMessage `json:"ram_mb"`

	isGiven, isNull bool
}

// UnmarshalJSON notes whether the field was there: null takes all limits away.
func (q *quotaChange) UnmarshalJSON(data []byte) error {
	q.isGiven, q.isNull = true, isNull(data)
	var limits map[string]json.RawMessage
	if json.Unmarshal(data, &limits) != nil {
		return apperr.InvalidField("quota", "must be an object, or null if nothing is to be counted")
	}
	into := map[string]*json.RawMessage{"instances": &q.Instances, "vcpus": &q.VCPUs, "ram_mb": &q.RAMMB}
	for name, limit := range limits {
		if into[name] == nil {
			return apperr.InvalidField("quota", fmt.Sprintf("%.64q is not a field of it", name), slices.Sorted(maps.Keys(into))...)
		}
		*into[name] = limit
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
	for _, part := range []func(domain.Identity, *wish) error{r.plainFields, r.users, r.times, r.quota, r.credential} {
		if err := part(who, &w); err != nil {
			return w, err
		}
	}
	return w, nil
}

func (r changeRequest) isEmpty() bool {
	return r.Name == nil && r.ExpiresAt == nil && r.IdleTimeout == nil && !r.Quota.isGiven && r.UsableBy == nil && r.Actions == nil && r.ID == nil && r.Secret == nil
}

func (r changeRequest) plainFields(_ domain.Identity, w *wish) error {
	if _, err := given(r.Name, "name", "text", &w.Name); err != nil {
		return err
	}
	if err := plain("name", w.Name, maxName); err != nil {
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
	isGiven, err := given(r.UsableBy, "usable_by", "a list of ids", &in.UsableBy)
	if err != nil || !isGiven {
		return err
	}
	by := wish{Connection: domain.Connection{UserID: who.UserID, ProjectID: who.ProjectID, UsableBy: []string{}}}
	if err := in.users(&by); err != nil {
		return err
	}
	w.UsableBy = by.UsableBy
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
	if r.Quota.isNull {
		w.Quota = domain.ConnectionQuota{}
	}
	for _, line := range []struct {
		field string
		raw   json.RawMessage
		into  **int
	}{
		{"quota.instances", r.Quota.Instances, &w.Quota.Instances},
		{"quota.vcpus", r.Quota.VCPUs, &w.Quota.VCPUs},
		{"quota.ram_mb", r.Quota.RAMMB, &w.Quota.RAMMB},
	} {
		if line.raw != nil && isNull(line.raw) {
			*line.into = nil
			continue
		}
		var most int
		isGiven, err := given(line.raw, line.field, "a whole number, or null if it is not to be counted", &most)
		if err != nil {
			return err
		}
		if isGiven {
			*line.into = &most
		}
	}
	return creation{}.quotas(w)
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
	return plain("id", w.DelegationID, maxText)
}

// etag names one version of a connection.
func etag(c domain.Connection) string { return `"` + strconv.FormatInt(c.Seq, 10) + `"` }
