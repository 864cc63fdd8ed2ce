package connections

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

// ChangeConnection is the body of PATCH /v1/connections/{id}, a JSON merge patch (RFC 7396): what is absent stays, null
// removes a limit.
type ChangeConnection struct {
	Name        *plainText           `json:"name,omitempty"`
	ExpiresAt   *httpx.Time          `json:"expires_at,omitempty"`
	IdleTimeout patch[duration]      `json:"idle_timeout,omitzero" nullable:"true" doc:"1h to 8784h. Null removes it."`
	Quota       patch[QuotaRequest]  `json:"quota,omitzero"`
	Limits      patch[LimitsRequest] `json:"limits,omitzero"`
	UsableBy    []UsableEntry        `json:"usable_by,omitempty" maxItems:"100" doc:"All of them."`
	Actions     []domain.Permission  `json:"actions,omitempty" minItems:"1" uniqueItems:"true" doc:"All of them."`
	ID          *plainText           `json:"id,omitempty" minLength:"1"`
	Secret      *domain.Secret       `json:"secret,omitempty" minLength:"1" maxLength:"1024"`

	nulls []string // the fields that are null and may not be
}

// UnmarshalJSON implements json.Unmarshaler. huma takes null for absent, and in a merge patch it is not.
func (c *ChangeConnection) UnmarshalJSON(text []byte) error {
	var fields map[string]json.RawMessage
	_ = json.Unmarshal(text, &fields)
	for name, value := range fields {
		if string(value) == "null" && !slices.Contains([]string{"idle_timeout", "quota", "limits"}, name) {
			c.nulls = append(c.nulls, name)
		}
	}
	type plain ChangeConnection
	return json.Unmarshal(text, (*plain)(c))
}

// Resolve implements huma.Resolver.
func (c *ChangeConnection) Resolve(huma.Context) []error {
	faults := checkUsable(c.UsableBy)
	for _, name := range c.nulls {
		faults = append(faults, apperr.InvalidField(name, "must not be null"))
	}
	limits := c.Limits.apply(nil) // huma resolves no parts of a patch
	for n, id := range limits.Images {
		faults = append(faults, httpx.NotZero(id.UUID, fmt.Sprintf("body.limits.images[%d]", n))...)
	}
	for n, id := range limits.Networks {
		faults = append(faults, httpx.NotZero(id.UUID, fmt.Sprintf("body.limits.networks[%d]", n))...)
	}
	if idle := c.IdleTimeout.apply(""); idle.value() == 0 && !c.IdleTimeout.isNull() && !c.IdleTimeout.IsZero() {
		faults = append(faults, apperr.InvalidField("idle_timeout", mustBeDuration+", or null"))
	}
	if c.ID != nil && c.Secret == nil {
		faults = append(faults, apperr.InvalidField("secret",
			"must be given with another id: the secret of that application credential"))
	}
	if reflect.ValueOf(*c).IsZero() {
		faults = append(faults, apperr.New(apperr.Invalid,
			"the body changes nothing: it must have name, expires_at, idle_timeout, quota, limits, usable_by, "+
				"actions or secret"))
	}
	return faults
}

// draft is the connection with the change, as far as the request alone decides it.
func (c ChangeConnection) draft(before domain.Connection) (draft, error) {
	d := draft{Connection: before, secret: deref(c.Secret)}
	d.Flavors, d.Secret = nil, nil // they stay unless the credential is replaced
	if d.secret != "" && d.Kind != domain.CredentialConnection {
		return d, apperr.InvalidField("secret",
			"cannot be combined with the kind trust: another expires_at replaces a trust")
	}
	if c.ID != nil {
		d.DelegationID = string(*c.ID)
	}
	if c.Name != nil {
		d.Name = string(*c.Name)
	}
	if c.ExpiresAt != nil {
		d.ExpiresAt = moment(*c.ExpiresAt)
	}
	if c.Actions != nil {
		d.Actions = c.Actions
	}
	if c.UsableBy != nil {
		d.UsableBy, d.names = split(c.UsableBy)
		d.UsableNames = slices.DeleteFunc(slices.Clone(d.UsableNames), func(n domain.UsableByName) bool {
			return !slices.Contains(d.UsableBy, n.ID)
		})
	}
	if !c.IdleTimeout.IsZero() {
		d.IdleTimeout = c.IdleTimeout.apply("").value()
	}
	d.Quota = domain.ConnectionQuota(c.Quota.apply(d.Quota))
	d.Limits = c.Limits.apply(d.Limits).limits()
	return d, nil
}

// patch is a part of a JSON merge patch of a T.
type patch[T any] struct{ text string }

// UnmarshalJSON implements json.Unmarshaler.
func (p *patch[T]) UnmarshalJSON(text []byte) error {
	p.text = string(text)
	return nil
}

// Schema implements huma.SchemaProvider.
func (patch[T]) Schema(r huma.Registry) *huma.Schema { return r.Schema(reflect.TypeFor[T](), true, "") }

// IsZero reports whether the part is absent.
func (p patch[T]) IsZero() bool { return p.text == "" }

func (p patch[T]) isNull() bool { return p.text == "null" }

// apply gives the value with the patch. It shares nothing with the value before, which has the same form in JSON.
func (p patch[T]) apply(before any) (after T) {
	if p.isNull() {
		return after
	}
	text, _ := json.Marshal(before) //nolint:errchkjson // texts and numbers
	_ = json.Unmarshal(text, &after)
	if !p.IsZero() {
		_ = json.Unmarshal([]byte(p.text), &after) // its schema has been checked
	}
	return after
}
