package domain

import (
	"cmp"

	"github.com/google/uuid"
)

// The actions for volumes of leases. Only leases request them.
const (
	// AttachVolume makes a new volume, or takes an existing one, and attaches it to the instance.
	AttachVolume Action = "attach_volume"
	// DetachVolume detaches the volume, and does what its OnEnd says.
	DetachVolume Action = "detach_volume"
)

// VolumeEnd is what happens to a volume at the end of its lease, once it is detached.
type VolumeEnd string

// What may happen. A new volume that was never attached is empty: it is deleted in any case.
const (
	VolumeEndKeep     VolumeEnd = "keep"
	VolumeEndSnapshot VolumeEnd = "snapshot" // a snapshot is made of it, and it is kept, too
	VolumeEndDelete   VolumeEnd = "delete"
)

// LeasedVolume is a volume that a lease attaches to one of its instances at its start.
type LeasedVolume struct {
	// InstanceIndex is that of the instance's reservation in the lease.
	InstanceIndex int `json:"instance_index"`

	ID     string `json:"id,omitempty"`      // Cinder's; "" = it has not been made yet
	IsNew  bool   `json:"new,omitempty"`     // it is made at the start, with the fields that follow
	SizeGB int    `json:"size_gb,omitempty"` // in GiB
	Type   string `json:"type,omitempty"`    // by name or id; "" = Cinder's default
	Name   string `json:"name,omitempty"`

	OnEnd      VolumeEnd `json:"on_end"`
	SnapshotID string    `json:"snapshot_id,omitempty"` // made at the end; "" = none
}

// VolumeMark is the key of a volume's and a snapshot's metadata that holds the id of the reservation that they were
// made for.
const VolumeMark = "cloudfn-reservation"

// VolumeTask is what AttachVolume and DetachVolume take.
type VolumeTask struct {
	LeasedVolume

	Reservation uuid.UUID `json:"reservation"` // for VolumeMark
	// IsUsed reports whether Nova may have attached the volume for the lease. A new one may hold data since.
	IsUsed bool `json:"used,omitempty"`
}

// ActionOutcome is what AttachVolume and DetachVolume have made or found, also if they fail later.
type ActionOutcome struct {
	VolumeID   string `json:"volume_id,omitempty"`
	SnapshotID string `json:"snapshot_id,omitempty"` // "" = none
	IsUsed     bool   `json:"used,omitempty"`        // Nova may have attached the volume
}

// Merge adds what a later step has found.
func (o ActionOutcome) Merge(later ActionOutcome) ActionOutcome {
	return ActionOutcome{
		VolumeID: cmp.Or(later.VolumeID, o.VolumeID), SnapshotID: cmp.Or(later.SnapshotID, o.SnapshotID),
		IsUsed: o.IsUsed || later.IsUsed,
	}
}

// Volumes reports whether the lease reserves any volume.
func (l Lease) Volumes() bool { return l.reserves(VolumeReservation) }

// InstanceOf is the reservation of the instance that gets the volume of r.
func (l Lease) InstanceOf(r Reservation) *Reservation { return &l.Reservations[r.Volume.InstanceIndex] }
