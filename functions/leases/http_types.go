package leases

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

// CreateLease is the body of POST /v1/leases.
type CreateLease struct {
	ID   *httpx.ID `json:"id,omitempty" doc:"Of your choice: the same id and body give the same lease."`
	Name string    `json:"name" minLength:"1" maxLength:"255" doc:"What people call it."`
	httpx.LeaseTerms
	ConnectionID *httpx.ID            `json:"connection_id,omitempty" doc:"Handles its instances. By default a trust."`
	Enforce      bool                 `json:"enforce,omitempty" doc:"Shelve an instance again that starts too early."`
	Reservations []ReservationRequest `json:"reservations" minItems:"1" maxItems:"50"`
}

// ReservationRequest is one reservation of a request.
type ReservationRequest struct {
	Type         domain.ReservationType `json:"type" enum:"instance,host"`
	InstanceID   *httpx.ID              `json:"instance_id,omitempty" doc:"Of an instance: its id here, not Nova's."`
	ServerID     *httpx.ID              `json:"server_id,omitempty" doc:"Or Nova's id: the server is connected first."`
	Min          *int                   `json:"min,omitempty" minimum:"1" maximum:"1000" doc:"Hosts. 1 by default."`
	Max          *int                   `json:"max,omitempty" minimum:"1" maximum:"1000" doc:"As min by default."`
	VCPUs        int                    `json:"vcpus,omitempty" minimum:"0" maximum:"1000000" doc:"Of each host."`
	RAMMB        int                    `json:"ram_mb,omitempty" minimum:"0" maximum:"100000000" doc:"Of each, in MiB"`
	DiskGB       int                    `json:"disk_gb,omitempty" minimum:"0" maximum:"10000000" doc:"Of each, in GiB"`
	Zone         string                 `json:"zone,omitempty" maxLength:"255" doc:"The availability zone."`
	Region       string                 `json:"region,omitempty" maxLength:"255" doc:"The region of the hosts."`
	Traits       []string               `json:"traits,omitempty" maxItems:"50" uniqueItems:"true" doc:"Of each host."`
	Capabilities []string               `json:"capabilities,omitempty" maxItems:"50"`
	Flavors      []string               `json:"flavors,omitempty" minItems:"1" maxItems:"20" uniqueItems:"true"`
	Heal         domain.Heal            `json:"heal,omitempty" enum:"auto,manual" doc:"When a host fails; auto."`
}

// Resolve implements huma.Resolver.
func (c *CreateLease) Resolve(huma.Context) []error {
	faults := c.Check()
	if err := (domain.Lease{Name: c.Name}).Validate(); err != nil && c.Name != "" {
		faults = append(faults, err)
	}
	isOfHosts := !slices.ContainsFunc(c.Reservations, func(r ReservationRequest) bool {
		return r.Type == domain.InstanceReservation
	})
	if c.ConnectionID != nil && isOfHosts {
		faults = append(faults, apperr.InvalidField("connection_id", "cannot be combined with hosts alone"))
	}
	seen := map[httpx.ID]int{}
	for n, r := range c.Reservations {
		field := func(name string) string { return fmt.Sprintf("reservations[%d].%s", n, name) }
		faults = append(faults, r.check(field)...)
		if r.InstanceID == nil {
			continue
		}
		if first, isRepeated := seen[*r.InstanceID]; isRepeated {
			faults = append(faults, apperr.InvalidField(field("instance_id"),
				fmt.Sprintf("is the one of reservations[%d], too", first)))
			continue
		}
		seen[*r.InstanceID] = n
	}
	return faults
}

// check finds the fields that do not fit the type.
func (r ReservationRequest) check(field func(string) string) (faults []error) {
	if r.Type == domain.HostReservation {
		for name, id := range map[string]*httpx.ID{"instance_id": r.InstanceID, "server_id": r.ServerID} {
			if id != nil {
				faults = append(faults, apperr.InvalidField(field(name), "cannot be combined with the type host"))
			}
		}
		if err := r.want().Validate(strings.TrimSuffix(field(""), ".")); err != nil {
			faults = append(faults, err)
		}
		return faults
	}
	switch {
	case r.InstanceID == nil && r.ServerID == nil:
		faults = append(faults, apperr.InvalidField(field("instance_id"), "is missing: give it, or server_id"))
	case r.InstanceID != nil && r.ServerID != nil:
		faults = append(faults,
			apperr.InvalidField(field("server_id"), "cannot be combined with instance_id: give one"))
	}
	const other = "cannot be combined with the type instance"
	for name, isGiven := range map[string]bool{
		"min": r.Min != nil, "max": r.Max != nil, "vcpus": r.VCPUs != 0, "ram_mb": r.RAMMB != 0,
		"disk_gb": r.DiskGB != 0, "zone": r.Zone != "", "region": r.Region != "", "traits": r.Traits != nil,
		"capabilities": r.Capabilities != nil, "flavors": r.Flavors != nil, "heal": r.Heal != "",
	} {
		if isGiven {
			faults = append(faults, apperr.InvalidField(field(name), other))
		}
	}
	return faults
}

// hash is equal for two requests that mean the same, however they are written.
func (c CreateLease) hash() []byte {
	c.LeaseTerms, c.Reservations = c.Canonical(), slices.Clone(c.Reservations)
	for n, r := range c.Reservations {
		if r.Type == domain.HostReservation {
			want := r.want()
			c.Reservations[n].Min, c.Reservations[n].Max, c.Reservations[n].Heal = &want.Min, &want.Max, want.Heal
		}
	}
	text, _ := json.Marshal(c) //nolint:errchkjson // it was decoded from JSON
	sum := sha256.Sum256(text)
	return sum[:]
}

// want is what hosts it asks for.
func (r ReservationRequest) want() *domain.HostWant {
	want := &domain.HostWant{
		Min: 1, VCPUs: r.VCPUs, RAMMB: r.RAMMB, DiskGB: r.DiskGB, Region: r.Region, Zone: r.Zone, Traits: r.Traits,
		Capabilities: r.Capabilities, Heal: r.Heal,
	}
	if want.Heal == domain.HealAuto {
		want.Heal = ""
	}
	if r.Min != nil {
		want.Min = *r.Min
	} else if r.Max != nil {
		want.Min = min(want.Min, *r.Max)
	}
	want.Max = want.Min
	if r.Max != nil {
		want.Max = *r.Max
	}
	return want
}

// ChangeLease is the body of PATCH /v1/leases/{id}, a JSON merge patch (RFC 7396): what is absent stays, and null
// removes before_end.
type ChangeLease struct {
	Name      *string         `json:"name,omitempty" minLength:"1" maxLength:"255" doc:"What people call it."`
	Start     httpx.TimeOrNow `json:"start,omitempty"`
	End       httpx.TimeOrNow `json:"end,omitempty"`
	Duration  httpx.Period    `json:"duration,omitempty"`
	BeforeEnd httpx.Period    `json:"before_end,omitempty" nullable:"true"`
	OnEnd     domain.OnEnd    `json:"on_end,omitempty" enum:"shelve,stop,snapshot_delete,delete"`
	Enforce   *bool           `json:"enforce,omitempty" doc:"Shelve an instance again that starts too early."`
	Heal      domain.Heal     `json:"heal,omitempty" enum:"auto,manual" doc:"When a host of any reservation fails."`

	nulls []string
}

// UnmarshalJSON implements json.Unmarshaler. huma takes null for absent, and in a merge patch it is not.
func (c *ChangeLease) UnmarshalJSON(text []byte) error {
	var fields map[string]json.RawMessage
	_ = json.Unmarshal(text, &fields)
	for name, value := range fields {
		if string(value) == "null" {
			c.nulls = append(c.nulls, name)
		}
	}
	type plain ChangeLease
	return json.Unmarshal(text, (*plain)(c))
}

// Resolve implements huma.Resolver.
func (c *ChangeLease) Resolve(huma.Context) (faults []error) {
	for _, name := range c.nulls {
		if name != "before_end" {
			faults = append(faults, apperr.InvalidField(name, "must not be null"))
		}
	}
	if c.Name != nil && *c.Name != "" {
		if err := (domain.Lease{Name: *c.Name}).Validate(); err != nil {
			faults = append(faults, err)
		}
	}
	faults = append(faults, httpx.CheckTerms(c.Start, c.End, c.Duration, c.BeforeEnd)...)
	if reflect.ValueOf(*c).IsZero() {
		faults = append(faults, apperr.New(apperr.Invalid,
			"the body changes nothing: it must have name, start, end, duration, before_end, on_end, "+
				"enforce or heal"))
	}
	return faults
}

// warns reports whether the request changes the warning before the end.
func (c ChangeLease) warns() bool { return c.BeforeEnd != "" || slices.Contains(c.nulls, "before_end") }
