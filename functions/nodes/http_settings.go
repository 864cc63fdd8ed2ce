package nodes

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/auth"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

// ChangeNode is the body of PATCH /v1/nodes/{name}, a JSON merge patch (RFC 7396): what is absent stays, and null
// resets a field or removes a label.
type ChangeNode struct {
	Labels      map[string]*string `json:"labels,omitempty" nullable:"true" maxProperties:"50" doc:"Texts by key."`
	RegionZone  *string            `json:"region_zone,omitempty" nullable:"true" maxLength:"255" doc:"Where it is."`
	NetworkZone *string            `json:"network_zone,omitempty" nullable:"true" maxLength:"255"`
	Providers   []string           `json:"providers,omitempty" nullable:"true" maxItems:"20" uniqueItems:"true"`
	StatusURL   *string            `json:"status_url,omitempty" nullable:"true" maxLength:"2048"`
	Alert       *bool              `json:"alert,omitempty" nullable:"true" doc:"Whether its changes are events."`
	AutoCordon  *string            `json:"auto_cordon_after,omitempty" nullable:"true" maxLength:"100" example:"PT10M"`
	AutoDrain   *string            `json:"auto_drain_after,omitempty" nullable:"true" maxLength:"100" example:"PT30M"`

	given map[string]json.RawMessage
}

// UnmarshalJSON implements json.Unmarshaler. huma takes null for absent, and in a merge patch it is not.
func (c *ChangeNode) UnmarshalJSON(text []byte) error {
	_ = json.Unmarshal(text, &c.given)
	type plain ChangeNode
	return json.Unmarshal(text, (*plain)(c))
}

const maxLabels = 50

// Resolve implements huma.Resolver.
func (c *ChangeNode) Resolve(huma.Context) (faults []error) {
	for key, value := range c.Labels {
		if value == nil { // one of an older release, which took other forms
			continue
		}
		if fault := domain.CheckLabel(key, *value); fault != "" {
			faults = append(faults, apperr.InvalidField("labels."+key, fault))
		}
	}
	for field, p := range map[string]*string{"auto_cordon_after": c.AutoCordon, "auto_drain_after": c.AutoDrain} {
		if p == nil {
			continue
		}
		if _, fault := fixed(*p); fault != "" || *p == "" {
			faults = append(faults, apperr.InvalidField(field, cmp.Or(fault, "must be an ISO 8601 duration, or null")))
		}
	}
	return faults
}

// valueOf is what a pointer points to; zero for nil.
func valueOf[T any](p *T) (value T) {
	if p != nil {
		value = *p
	}
	return value
}

// apply is what is set of a node after the change.
func (c *ChangeNode) apply(before domain.Node) (after domain.NodeSettings, err error) {
	after = domain.NodeSettings{
		Labels: maps.Clone(before.Labels), RegionZone: before.RegionZone, NetworkZone: before.NetworkZone,
		Providers: before.Providers, StatusURL: before.StatusURL, Alert: before.Alert || before.Version == 0,
		AutoCordonAfter: before.AutoCordonAfter, AutoDrainAfter: before.AutoDrainAfter,
	}
	for name := range c.given {
		switch name {
		case "labels":
			after.Labels = c.labels(after.Labels)
		case "region_zone":
			after.RegionZone = valueOf(c.RegionZone)
		case "network_zone":
			after.NetworkZone = valueOf(c.NetworkZone)
		case "providers":
			after.Providers = c.Providers
		case "status_url":
			after.StatusURL = valueOf(c.StatusURL)
		case "alert":
			after.Alert = c.Alert == nil || *c.Alert
		case "auto_cordon_after":
			after.AutoCordonAfter, _ = fixed(valueOf(c.AutoCordon)) // Resolve has refused what cannot be read
		case "auto_drain_after":
			after.AutoDrainAfter, _ = fixed(valueOf(c.AutoDrain))
		}
	}
	if len(after.Labels) > maxLabels {
		err = apperr.InvalidField("labels", "the node would have more than 50 labels")
	}
	return after, err
}

// labels are those of a node after the change; null instead of an object removes all.
func (c *ChangeNode) labels(before map[string]string) map[string]string {
	after := map[string]string{}
	if c.Labels != nil {
		maps.Copy(after, before)
	}
	for key, value := range c.Labels {
		if delete(after, key); value != nil {
			after[key] = *value
		}
	}
	return after
}

// fixed is the length of a period that has one: years and months have none. An absent period is zero.
func fixed(p string) (length time.Duration, fault string) {
	if p == "" {
		return 0, ""
	}
	parsed, err := domain.ParsePeriod(p)
	if err != nil {
		return 0, err.Error()
	}
	lengths := map[time.Duration]bool{}
	for _, month := range []time.Month{time.January, time.February, time.April} {
		from := time.Date(2023, month, 1, 0, 0, 0, 0, time.UTC)
		length = parsed.AddTo(from).Sub(from)
		lengths[length] = true
	}
	if strings.Contains(parsed.String(), "Y") || len(lengths) > 1 {
		return 0, "must be of weeks, days, hours, minutes and seconds: years and months differ in length"
	}
	return length, ""
}

type changeInput struct {
	NodePath
	IfMatch string `header:"If-Match" minLength:"1" example:"\"3\""`
	Body    ChangeNode
}

func (h handler) change(ctx context.Context, in *changeInput) (*nodeOutput, error) {
	who, token := auth.Caller(ctx)
	return reply(h.svc.Change(ctx, who, token, in.Name, &in.Body, httpx.IfMatch(httpx.RequestOf(ctx))))
}
