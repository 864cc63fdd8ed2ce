package leases

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

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

// ReservationRequest is one reservation of a request. The tag of names the types that have the field.
type ReservationRequest struct {
	Type domain.ReservationType `json:"type" enum:"instance,host,volume"`

	InstanceID *httpx.ID `json:"instance_id,omitempty" of:"instance,volume" doc:"The instance's id here, not Nova's."`
	ServerID   *httpx.ID `json:"server_id,omitempty" of:"instance,volume" doc:"Or Nova's: the server is connected."`

	VolumeID *httpx.ID `json:"volume_id,omitempty" of:"volume" doc:"An existing volume."`
	SizeGB   int       `json:"size_gb,omitempty" of:"volume" minimum:"1" maximum:"1000000" doc:"Of a new volume."`

	VolumeType string `json:"volume_type,omitempty" of:"volume" minLength:"1" maxLength:"255" doc:"Name or id."`

	Name  string           `json:"name,omitempty" of:"volume" minLength:"1" maxLength:"255" doc:"Of a new volume."`
	OnEnd domain.VolumeEnd `json:"on_end,omitempty" of:"volume" enum:"keep,snapshot,delete" doc:"keep by default."`

	Min          *int        `json:"min,omitempty" of:"host" minimum:"1" maximum:"1000" doc:"Hosts. 1 by default."`
	Max          *int        `json:"max,omitempty" of:"host" minimum:"1" maximum:"1000" doc:"As min by default."`
	VCPUs        int         `json:"vcpus,omitempty" of:"host" minimum:"0" maximum:"1000000" doc:"Of each host."`
	RAMMB        int         `json:"ram_mb,omitempty" of:"host" minimum:"0" maximum:"100000000" doc:"Of each, in MiB."`
	DiskGB       int         `json:"disk_gb,omitempty" of:"host" minimum:"0" maximum:"10000000" doc:"Of each, in GiB."`
	Zone         string      `json:"zone,omitempty" of:"host" maxLength:"255" doc:"The availability zone."`
	Region       string      `json:"region,omitempty" of:"host" maxLength:"255" doc:"The region of the hosts."`
	Traits       []string    `json:"traits,omitempty" of:"host" maxItems:"50" uniqueItems:"true" doc:"Of each host."`
	Capabilities []string    `json:"capabilities,omitempty" of:"host" maxItems:"50"`
	Flavors      []string    `json:"flavors,omitempty" of:"host" minItems:"1" maxItems:"20" uniqueItems:"true"`
	Heal         domain.Heal `json:"heal,omitempty" of:"host" enum:"auto,manual" doc:"When a host fails; auto."`
}

// Resolve implements huma.Resolver.
func (c *CreateLease) Resolve(huma.Context) []error {
	faults := c.Check()
	if err := (domain.Lease{Name: c.Name}).Validate(); err != nil && c.Name != "" {
		faults = append(faults, err)
	}
	if c.ConnectionID != nil {
		if c.count(domain.InstanceReservation) == 0 {
			faults = append(faults, apperr.InvalidField("connection_id", "cannot be combined with hosts alone"))
		}
		if c.count(domain.VolumeReservation) > 0 {
			faults = append(faults, apperr.InvalidField("connection_id", "cannot be combined with volumes: leave it "+
				"out, and the lease gets a connection of its own"))
		}
	}
	seen := map[httpx.ID]int{}
	for n, r := range c.Reservations {
		field := func(name string) string { return fmt.Sprintf("reservations[%d].%s", n, name) }
		faults = append(faults, r.check(field)...)
		id, name := r.InstanceID, "instance_id"
		if r.Type == domain.VolumeReservation {
			id, name = r.VolumeID, "volume_id"
			if _, err := c.instanceOf(r); err != nil {
				faults = append(faults, apperr.InvalidField(field("instance_id"), err.Error()))
			}
		}
		if id == nil {
			continue
		}
		if first, isRepeated := seen[*id]; isRepeated {
			faults = append(faults, apperr.InvalidField(field(name),
				fmt.Sprintf("is the one of reservations[%d], too", first)))
			continue
		}
		seen[*id] = n
	}
	return faults
}

func (c *CreateLease) count(kind domain.ReservationType) (n int) {
	for _, r := range c.Reservations {
		if r.Type == kind {
			n++
		}
	}
	return n
}

// instanceOf is the index of the reservation whose instance gets a volume: the one that it names, or the only one.
func (c *CreateLease) instanceOf(volume ReservationRequest) (int, error) {
	found := -1
	for n, r := range c.Reservations {
		isNamed := volume.InstanceID != nil && r.InstanceID != nil && *volume.InstanceID == *r.InstanceID ||
			volume.ServerID != nil && r.ServerID != nil && *volume.ServerID == *r.ServerID
		isAny := volume.InstanceID == nil && volume.ServerID == nil
		switch {
		case r.Type != domain.InstanceReservation || !isNamed && !isAny:
		case found >= 0:
			return found, errors.New("is missing: the lease has several instances, so say which gets the volume")
		default:
			found = n
		}
	}
	switch {
	case found >= 0:
		return found, nil
	case c.count(domain.InstanceReservation) == 0:
		return found, errors.New("has no reservation: a volume needs one of the type instance in the same lease")
	}
	return found, errors.New("must be of a reservation of the type instance in the same lease")
}

// check finds the fields that do not fit the type.
func (r ReservationRequest) check(field func(string) string) (faults []error) {
	value := reflect.ValueOf(r)
	for f, v := range value.Fields() {
		types := f.Tag.Get("of")
		if types == "" || v.IsZero() || slices.Contains(strings.Split(types, ","), string(r.Type)) {
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		faults = append(faults, apperr.InvalidField(field(name), "cannot be combined with the type "+string(r.Type)))
	}
	isNamed := r.InstanceID != nil || r.ServerID != nil
	if r.InstanceID != nil && r.ServerID != nil && r.Type != domain.HostReservation {
		faults = append(faults,
			apperr.InvalidField(field("server_id"), "cannot be combined with instance_id: give one"))
	}
	switch r.Type {
	case domain.HostReservation:
		if err := r.want().Validate(strings.TrimSuffix(field(""), ".")); err != nil {
			faults = append(faults, err)
		}
	case domain.InstanceReservation:
		if !isNamed {
			faults = append(faults, apperr.InvalidField(field("instance_id"), "is missing: give it, or server_id"))
		}
	case domain.VolumeReservation:
		faults = append(faults, r.checkVolume(field)...)
	}
	return faults
}

// checkVolume rejects a volume that is neither an existing one nor a new one, or both.
func (r ReservationRequest) checkVolume(field func(string) string) (faults []error) {
	if r.VolumeID == nil {
		if r.SizeGB == 0 {
			faults = append(faults, apperr.InvalidField(field("volume_id"),
				"is missing: give it, or the size_gb of a new volume"))
		}
		return faults
	}
	isGiven := map[string]bool{"size_gb": r.SizeGB != 0, "volume_type": r.VolumeType != "", "name": r.Name != ""}
	for _, name := range slices.Sorted(maps.Keys(isGiven)) {
		if isGiven[name] {
			faults = append(faults, apperr.InvalidField(field(name), "is for a new volume: leave volume_id out"))
		}
	}
	return faults
}

// hash is the domain.RequestHash.
func (c CreateLease) hash() []byte {
	c.LeaseTerms, c.Reservations = c.Canonical(), slices.Clone(c.Reservations)
	for n, r := range c.Reservations {
		if r.Type == domain.HostReservation {
			want := r.want()
			c.Reservations[n].Min, c.Reservations[n].Max, c.Reservations[n].Heal = &want.Min, &want.Max, want.Heal
		}
		if r.OnEnd == domain.VolumeEndKeep {
			c.Reservations[n].OnEnd = ""
		}
	}
	hash := domain.RequestHash(c)
	return hash[:]
}

// want is the hosts that it requests.
func (r ReservationRequest) want() *domain.HostRequest {
	want := &domain.HostRequest{
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
	Name     *string         `json:"name,omitempty" minLength:"1" maxLength:"255" doc:"What people call it."`
	Start    httpx.TimeOrNow `json:"start,omitempty"`
	End      httpx.TimeOrNow `json:"end,omitempty"`
	Duration httpx.Period    `json:"duration,omitempty"`

	BeforeEnd httpx.Patch[httpx.Period] `json:"before_end,omitzero" nullable:"true"`

	OnEnd   domain.OnEnd `json:"on_end,omitempty" enum:"shelve,stop,snapshot_delete,delete"`
	Enforce *bool        `json:"enforce,omitempty" doc:"Shelve an instance again that starts too early."`
	Heal    domain.Heal  `json:"heal,omitempty" enum:"auto,manual" doc:"When a host of any reservation fails."`

	Reservations []ReservationChange `json:"reservations,omitempty" minItems:"1" maxItems:"50" doc:"Of volumes."`
}

// ReservationChange is what is to happen to the volume of a reservation at the end.
type ReservationChange struct {
	ID    httpx.ID         `json:"id"`
	OnEnd domain.VolumeEnd `json:"on_end" enum:"keep,snapshot,delete"`
}

// Resolve implements huma.Resolver.
func (c *ChangeLease) Resolve(ctx huma.Context) []error {
	faults := httpx.CheckNulls(ctx, "before_end")
	if c.Name != nil && *c.Name != "" {
		if err := (domain.Lease{Name: *c.Name}).Validate(); err != nil {
			faults = append(faults, err)
		}
	}
	faults = append(faults, httpx.CheckTerms(c.Start, c.End, c.Duration, c.BeforeEnd.Apply(""))...)
	seen := map[httpx.ID]int{}
	for n, r := range c.Reservations {
		if first, isRepeated := seen[r.ID]; isRepeated {
			faults = append(faults, apperr.InvalidField(fmt.Sprintf("reservations[%d].id", n),
				fmt.Sprintf("repeats the id of reservations[%d]", first)))
		}
		seen[r.ID] = n
	}
	if len(faults) == 0 && reflect.ValueOf(*c).IsZero() {
		faults = append(faults, apperr.New(apperr.Invalid,
			"the body changes nothing: it must have name, start, end, duration, before_end, on_end, "+
				"enforce, heal or reservations"))
	}
	return faults
}

// LeasePage is a page of leases.
type LeasePage struct {
	Items []Lease `json:"leases" maxItems:"1000"`
	Next  *string `json:"next" pattern:"^/v1/leases\\?" doc:"The URL of the next page, without a host, or null."`
}

// Lease is a lease as its project sees it.
type Lease struct {
	ID           uuid.UUID          `json:"id" doc:"Version 7, in the order of time, unless its user chose it."`
	Name         string             `json:"name" minLength:"1" maxLength:"255"`
	Status       domain.LeaseStatus `json:"status"`
	Reason       *LeaseReason       `json:"reason,omitempty" doc:"Why it is in error, or why a step is repeated."`
	Degraded     bool               `json:"degraded" doc:"A reserved host is down, cordoned or isolated by others."`
	Start        time.Time          `json:"start"`
	End          time.Time          `json:"end"`
	BeforeEnd    string             `json:"before_end,omitempty" minLength:"3" doc:"How long before the end it warns."`
	OnEnd        domain.OnEnd       `json:"on_end" enum:"shelve,stop,snapshot_delete,delete,none"`
	Enforce      bool               `json:"enforce,omitempty" doc:"An instance that starts too early is shelved again."`
	UserID       string             `json:"user_id" minLength:"1" doc:"Who created it."`
	ConnectionID uuid.UUID          `json:"connection_id,omitzero" doc:"The connection that handles its instances."`
	OrderID      uuid.UUID          `json:"order_id,omitzero" doc:"The order that it was made with."`
	Isolation    string             `json:"isolation,omitempty" enum:"proven,unproven"`
	Warnings     []string           `json:"warnings,omitempty" minItems:"1"`
	CreatedAt    time.Time          `json:"created_at"`
	UpdatedAt    time.Time          `json:"updated_at"`
	Reservations []Reservation      `json:"reservations"`
	Events       []LeaseEvent       `json:"events"`
}

// LeaseReason is why something failed: a code, and a text.
type LeaseReason struct {
	Code   string `json:"code" minLength:"1"`
	Detail string `json:"detail"`
}

// LeaseEvent is a step of a lease.
type LeaseEvent struct {
	Type   string    `json:"type" enum:"start,before_end,end"`
	DueAt  time.Time `json:"due_at"`
	Status string    `json:"status" enum:"pending,done,skipped,failed"`
	At     time.Time `json:"at,omitzero" doc:"When it was done, or had failed."`
	// Of a step that fails and is repeated.
	Attempts int       `json:"attempts,omitzero" minimum:"1" doc:"How often it has failed."`
	RetryAt  time.Time `json:"retry_at,omitzero" doc:"When it is tried again."`
}

// Reservation is one part of a lease. Which hosts a reservation has is the operator's matter.
type Reservation struct {
	ID           uuid.UUID                `json:"id"`
	Type         domain.ReservationType   `json:"type" enum:"instance,host,volume"`
	Status       domain.ReservationStatus `json:"status" enum:"pending,active,ended"`
	Reason       *LeaseReason             `json:"reason,omitempty"`
	InstanceID   uuid.UUID                `json:"instance_id,omitzero" doc:"The instance, or the volume's."`
	VolumeID     string                   `json:"volume_id,omitempty" minLength:"1" doc:"A new one has it once made."`
	SizeGB       int                      `json:"size_gb,omitzero" minimum:"1" doc:"Of a new volume."`
	VolumeType   string                   `json:"volume_type,omitempty" minLength:"1"`
	Name         string                   `json:"name,omitempty" minLength:"1"`
	OnEnd        domain.VolumeEnd         `json:"on_end,omitempty" enum:"keep,snapshot,delete"`
	SnapshotID   string                   `json:"snapshot_id,omitempty" minLength:"1" doc:"Made at the end."`
	Min          int                      `json:"min,omitzero" minimum:"1"`
	Max          int                      `json:"max,omitzero" minimum:"1"`
	VCPUs        int                      `json:"vcpus,omitzero" minimum:"1"`
	RAMMB        int                      `json:"ram_mb,omitzero" minimum:"1"`
	DiskGB       int                      `json:"disk_gb,omitzero" minimum:"1"`
	Region       string                   `json:"region,omitempty" minLength:"1"`
	Zone         string                   `json:"zone,omitempty" minLength:"1"`
	Traits       []string                 `json:"traits,omitempty" minItems:"1"`
	Capabilities []string                 `json:"capabilities,omitempty" minItems:"1"`
	Heal         domain.Heal              `json:"heal,omitempty" enum:"auto,manual" doc:"When a host fails."`
	Hosts        *int                     `json:"hosts,omitempty" minimum:"0" doc:"How many it has, or had at its end."`
	Flavors      []LeaseFlavor            `json:"flavors,omitempty" minItems:"1"`
	Servers      []LeaseServer            `json:"servers,omitempty" minItems:"1" doc:"Those that its end did more to."`
}

// LeaseServer is a server that the end of a lease had to bring out of a state first, or could not end as on_end says.
type LeaseServer struct {
	ServerID string `json:"server_id" minLength:"1" doc:"Nova's."`
	Name     string `json:"name"`
	Detail   string `json:"detail" doc:"What was done besides on_end."`
}

// LeaseFlavor is a flavor whose servers land on reserved hosts.
type LeaseFlavor struct {
	ID     string `json:"id" minLength:"1" doc:"Of the private flavor, which exists while the lease is active."`
	Name   string `json:"name" doc:"Of the flavor that it is a copy of."`
	VCPUs  int    `json:"vcpus" minimum:"1"`
	RAMMB  int    `json:"ram_mb" minimum:"0"`
	DiskGB int    `json:"disk_gb" minimum:"0"`
}

// The warnings of a lease of hosts on a cloud that is not known to isolate them: after a self-test, and before any.
const (
	warnUnproven = "this cloud does not keep other servers off reserved hosts: its operator has to set " +
		"enable_isolated_aggregate_filtering in nova.conf"
	warnUntested = "it is not known yet whether this cloud keeps other servers off reserved hosts: the self-test of " +
		"run-leases has not ended"
)

func show(d domain.Lease, isolation domain.Isolation) Lease {
	out := Lease{
		ID: d.ID, Name: d.Name, Status: d.Status, Reason: (*LeaseReason)(d.Problem), Degraded: d.Degraded,
		Start: d.StartsAt.UTC(), End: d.EndsAt.UTC(), OnEnd: d.OnEnd, UserID: d.UserID, OrderID: d.OrderID,
		ConnectionID: d.ConnectionID, Enforce: d.Enforce,
		CreatedAt: d.CreatedAt.UTC(), UpdatedAt: d.UpdatedAt.UTC(), Reservations: []Reservation{}, Events: events(d),
	}
	if d.BeforeEnd > 0 {
		out.BeforeEnd = domain.PeriodOf(d.BeforeEnd).String()
	}
	if d.Hosts() {
		out.Isolation = isolation.Result
		switch {
		case out.Isolation == domain.IsolationProven || !d.Status.IsOpen():
		case isolation.TestedAt.IsZero():
			out.Warnings = append(out.Warnings, warnUntested)
		default:
			out.Warnings = append(out.Warnings, warnUnproven)
		}
	}
	for _, r := range d.Reservations {
		shown := showReservation(r)
		if r.Volume != nil {
			shown.InstanceID = d.InstanceOf(r).InstanceID
		}
		out.Reservations = append(out.Reservations, shown)
	}
	return out
}

func showReservation(r domain.Reservation) Reservation {
	out := Reservation{
		ID: r.ID, Type: r.Type, Status: r.Status, Reason: (*LeaseReason)(r.Problem), InstanceID: r.InstanceID,
	}
	if v := r.Volume; v != nil {
		out.VolumeID, out.SizeGB, out.VolumeType, out.Name = v.ID, v.SizeGB, v.Type, v.Name
		out.OnEnd, out.SnapshotID = v.OnEnd, v.SnapshotID
	}
	if r.Request == nil {
		return out
	}
	w, hosts := r.Request, 0
	for _, a := range r.Allocations {
		if a.ReplacedAt.IsZero() && (a.ReleasedAt.IsZero() || r.Status == domain.ReservationEnded) {
			hosts++
		}
	}
	out.Min, out.Max, out.VCPUs, out.RAMMB, out.DiskGB = w.Min, w.Max, w.VCPUs, w.RAMMB, w.DiskGB
	out.Region, out.Zone, out.Traits, out.Capabilities, out.Hosts = w.Region, w.Zone, w.Traits, w.Capabilities, &hosts
	out.Heal = cmp.Or(w.Heal, domain.HealAuto)
	for _, f := range r.Flavors {
		out.Flavors = append(out.Flavors, LeaseFlavor{
			ID: f.ID, Name: f.Base, VCPUs: f.VCPUs, RAMMB: f.RAMMB, DiskGB: f.DiskGB,
		})
	}
	for _, d := range r.Servers {
		if d.Did != "" {
			out.Servers = append(out.Servers, LeaseServer{ServerID: d.ID, Name: d.Name, Detail: d.Did})
		}
	}
	return out
}

// events are the steps of a lease: those that will come, and those that were.
func events(d domain.Lease) []LeaseEvent {
	step := func(kind string, due, at time.Time, result domain.StepResult) LeaseEvent {
		e := LeaseEvent{Type: kind, DueAt: due.UTC(), Status: string(result), At: at}
		switch {
		case result != "":
		case d.Status.IsOpen():
			e.Status = "pending"
		default:
			e.Status = string(domain.StepSkipped) // the lease was over before it was due
		}
		return e
	}
	repeated := func(e LeaseEvent) LeaseEvent {
		if e.Attempts = d.Attempts; d.Attempts > 0 {
			e.RetryAt = d.DueAt
		}
		return e
	}
	isEnd := d.Status == domain.LeaseEnding || d.EndResult != ""
	out := []LeaseEvent{step("start", d.StartsAt, d.StartedAt, d.StartResult)}
	if !isEnd && d.StartResult != domain.StepDone {
		out[0] = repeated(out[0])
	}
	if d.BeforeEnd > 0 {
		var result domain.StepResult
		if !d.WarnedAt.IsZero() {
			result = domain.StepDone
		}
		out = append(out, step("before_end", d.EndsAt.Add(-d.BeforeEnd), d.WarnedAt, result))
	}
	end := step("end", d.EndsAt, d.EndedAt, d.EndResult)
	if isEnd {
		end = repeated(end)
	}
	return append(out, end)
}
