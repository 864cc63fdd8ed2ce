package domain

import (
	"time"

	"github.com/google/uuid"
)

// The types of events about leases.
const (
	LeaseEvent        = "cloudfn.lease.state.v1"
	LeaseChangeEvent  = "cloudfn.lease.changed.v1"
	LeaseWarningEvent = "cloudfn.lease.before_end.v1"
)

// LeaseEventData is a lease's status.
type LeaseEventData struct {
	LeaseID        uuid.UUID      `json:"lease_id"`
	Name           string         `json:"name" minLength:"1"`
	Status         LeaseStatus    `json:"status"`
	PreviousStatus LeaseStatus    `json:"previous_status,omitempty" doc:"Absent in the first event."`
	Reason         *Problem       `json:"reason,omitempty" schema:"LeaseReason" doc:"Why it is in error, or retries."`
	Degraded       bool           `json:"degraded" doc:"A reserved host is down, cordoned or isolated."`
	Start          time.Time      `json:"start"`
	End            time.Time      `json:"end"`
	InstanceIDs    []uuid.UUID    `json:"instance_ids,omitempty" minItems:"1" doc:"What it reserves of instances."`
	VolumeIDs      []string       `json:"volume_ids,omitempty" minItems:"1" doc:"Its volumes that exist."`
	Servers        []LeasedServer `json:"servers,omitempty" minItems:"1" doc:"What its end did besides on_end."`
	// MovedReservation is the reservation that has another host in the place of a failed one.
	MovedReservation *uuid.UUID `json:"moved_reservation_id,omitempty" doc:"It has another host for a failed one."`
	Actor            *Actor     `json:"actor,omitempty" schema:"EventActor"`
}

// LeasedServer is what the end of a lease did to a server besides on_end.
type LeasedServer struct {
	ServerID string `json:"server_id"`
	Name     string `json:"name"`
	Detail   string `json:"detail"`
}

var leaseEvent = EventType{
	Type: LeaseEvent, Data: LeaseEventData{}, Operation: "leaseState", Subject: "the lease",
	Summary: "A lease has another status, or is degraded or not any more",
	Notes:   "Also with `moved_reservation_id` when another host replaces a failed one.",
	Example: `{"lease_id": "019b7c5e-7f60-7a88-b14f-6d0e5a4c3e55", "name": "workshop", "status": "active",
		"previous_status": "starting", "degraded": false, "start": "2026-12-01T08:00:00.000000Z",
		"end": "2026-12-03T08:00:00.000000Z"}`,
}

// LeaseChangeData is which fields of a lease its user changed.
type LeaseChangeData struct {
	LeaseID     uuid.UUID    `json:"lease_id"`
	Name        string       `json:"name" minLength:"1"`
	Fields      []LeaseField `json:"fields" minItems:"1" uniqueItems:"true" doc:"What has changed."`
	Start       time.Time    `json:"start"`
	End         time.Time    `json:"end"`
	OnEnd       OnEnd        `json:"on_end" enum:"shelve,stop,snapshot_delete,delete"`
	InstanceIDs []uuid.UUID  `json:"instance_ids,omitempty" minItems:"1" doc:"What it reserves of instances."`
	VolumeIDs   []string     `json:"volume_ids,omitempty" minItems:"1" doc:"Its volumes that exist."`
	Actor       *Actor       `json:"actor,omitempty" schema:"EventActor"`
}

// LeaseField is a field of a lease that its user may change.
type LeaseField string

// Values lists the fields.
func (LeaseField) Values() []string {
	return []string{"before_end", "end", "enforce", "heal", "name", "on_end", "reservations", "start"}
}

var leaseChangeEvent = EventType{
	Type: LeaseChangeEvent, Data: LeaseChangeData{}, Operation: "leaseChanged", Subject: "the lease",
	Summary: "A lease was changed by its user",
	Example: `{"lease_id": "019b7c5e-7f60-7a88-b14f-6d0e5a4c3e55", "name": "workshop", "fields": ["end"],
		"start": "2026-12-01T08:00:00.000000Z", "end": "2026-12-04T08:00:00.000000Z", "on_end": "shelve",
		"instance_ids": ["019b7c5e-3a10-7c44-9d0b-2f6a1c0e9a11"]}`,
}

// LeaseWarningData is about a lease that ends soon.
type LeaseWarningData struct {
	LeaseID     uuid.UUID   `json:"lease_id"`
	Name        string      `json:"name" minLength:"1"`
	End         time.Time   `json:"end"`
	OnEnd       OnEnd       `json:"on_end" enum:"shelve,stop,snapshot_delete,delete"`
	InstanceIDs []uuid.UUID `json:"instance_ids,omitempty" minItems:"1" doc:"What it reserves of instances."`
	VolumeIDs   []string    `json:"volume_ids,omitempty" minItems:"1" doc:"Its volumes that exist."`
}

var leaseWarningEvent = EventType{
	Type: LeaseWarningEvent, Data: LeaseWarningData{}, Operation: "leaseBeforeEnd", Subject: "the lease",
	Summary: "A lease ends soon",
	Notes:   "It comes once, `before_end` ahead of the end; again only if the end moves away.",
	Example: `{"lease_id": "019b7c5e-7f60-7a88-b14f-6d0e5a4c3e55", "name": "workshop",
		"end": "2026-12-03T08:00:00.000000Z", "on_end": "shelve"}`,
}
