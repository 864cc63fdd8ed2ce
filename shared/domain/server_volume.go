package domain

import (
	"slices"
)

// ServerVolume is a volume that a server has at its first boot: an existing one, or one that Nova makes with the
// server.
type ServerVolume struct {
	ID            string `json:"id,omitempty"`          // of an existing volume; "" = Nova makes one
	IsMultiattach bool   `json:"multiattach,omitempty"` // several servers may have it
	// IsBoot says that the server boots from it. Such a server has no disk of its flavor's size.
	IsBoot   bool         `json:"boot,omitempty"`
	Source   VolumeSource `json:"source,omitempty"`    // of a new volume; "" = it is empty
	SourceID string       `json:"source_id,omitempty"` // the id of the image or snapshot
	SizeGB   int          `json:"size_gb,omitempty"`   // of a new volume; 0 = that of its snapshot
	Type     string       `json:"type,omitempty"`      // of a new volume, by name or id; "" = Cinder's default
	Name     string       `json:"name,omitempty"`      // of a new volume
	// DeleteOnTermination says that the volume is deleted with the server once the order has set it (StepVolumes).
	DeleteOnTermination bool `json:"delete_on_termination,omitempty"`
}

// VolumeSource is what a volume is made from.
type VolumeSource string

// The sources of volumes.
const (
	FromImage    VolumeSource = "image"
	FromSnapshot VolumeSource = "snapshot" // of a volume
	FromVolume   VolumeSource = "volume"   // the volume itself
)

// IsNew reports whether Nova makes the volume.
func (v ServerVolume) IsNew() bool { return v.ID == "" }

// NeedsStep reports whether Nova's create call leaves the volume different from what was ordered. Until an order is
// done, a new volume is deleted with its server and an existing one is not, so that a rollback removes the order's own
// volumes and no data of others.
func (v ServerVolume) NeedsStep() bool { return v.IsNew() != v.DeleteOnTermination || v.Name != "" }

// SetsVolumes reports whether a volume of the server needs StepVolumes.
func (s LaunchSpec) SetsVolumes() bool { return slices.ContainsFunc(s.Volumes, ServerVolume.NeedsStep) }

// BootVolume returns the volume that the server boots from. ok is false when it boots from a disk of its flavor.
func (s LaunchSpec) BootVolume() (v ServerVolume, ok bool) {
	n := slices.IndexFunc(s.Volumes, func(v ServerVolume) bool { return v.IsBoot })
	if n < 0 {
		return v, false
	}
	return s.Volumes[n], true
}

// awaitsVolumes reports whether StepVolumes is to be taken for the instance. The volumes of a server in ERROR stay as
// its create call left them.
func (o Order) awaitsVolumes(i Instance) bool {
	switch i.State {
	case InstanceError, InstanceDeleting, InstanceDeleted:
		return false
	}
	return o.Spec.SetsVolumes && i.VolumesSetAt.IsZero() && i.Spec.SetsVolumes()
}

// VolumeAttachment is a volume that a server has.
type VolumeAttachment struct {
	VolumeID            string
	Device              string // by which Nova has asked the hypervisor for it, such as /dev/vdb; "" = not known
	DeleteOnTermination bool
}
