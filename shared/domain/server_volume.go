package domain

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/cloudfn/cloudfn/shared/apperr"
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

// CreatedVolumes are the volumes as the create call leaves them: new ones are deleted with the server, and existing
// ones are not.
func (s LaunchSpec) CreatedVolumes() []ServerVolume {
	created := slices.Clone(s.Volumes)
	for n := range created {
		created[n].DeleteOnTermination, created[n].Name = created[n].IsNew(), ""
	}
	return created
}

// BootVolume returns the volume that the server boots from. ok is false when it boots from a disk of its flavor.
func (s LaunchSpec) BootVolume() (v ServerVolume, ok bool) {
	n := slices.IndexFunc(s.Volumes, func(v ServerVolume) bool { return v.IsBoot })
	if n < 0 {
		return v, false
	}
	return s.Volumes[n], true
}

// BootFrom makes the volume that the server boots from of the image. One that is too small for it is Invalid; field is
// where the request has the volume.
func (s *LaunchSpec) BootFrom(image Image, field string) error {
	n := slices.IndexFunc(s.Volumes, func(v ServerVolume) bool { return v.IsBoot && v.Source == FromImage })
	if n < 0 {
		return nil
	}
	s.Volumes = slices.Clone(s.Volumes) // several servers may share them
	s.Volumes[n].SourceID = image.ID
	if least := image.DiskGB(); s.Volumes[n].SizeGB < least {
		return apperr.InvalidField(field+".size_gb", fmt.Sprintf("the image needs %d GB", least))
	}
	return nil
}

// IsDelegable reports whether a connection may make the volume: only the order's image is in it, and it is deleted with
// its server, which counts for the connection's quota.
func (v ServerVolume) IsDelegable() bool {
	isOfOrder := v.Source == "" || v.IsBoot && v.Source == FromImage
	return v.IsNew() && isOfOrder && v.DeleteOnTermination && v.Name == ""
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

// maySetVolumes reports whether StepVolumes can be taken now. An order that is all or nothing first waits until none of
// its servers can fail to be built.
func (o Order) maySetVolumes(i Instance) bool {
	switch i.State {
	case InstanceRequested, InstanceBuilding, InstanceUnknown:
		return false
	}
	isBuilding := func(i Instance) bool { return !i.Settled() }
	return o.Spec.OnFailure != Rollback || !slices.ContainsFunc(o.Instances, isBuilding)
}

// VolumeAttachment is a volume that a server has.
type VolumeAttachment struct {
	VolumeID            string
	Device              string // by which Nova has asked the hypervisor for it, such as /dev/vdb; "" = not known
	DeleteOnTermination bool
}

// BootVolume finds the volume that the server boots from; "" = it boots from an image, or Nova has not chosen the
// device yet. Only admins may read the name of its root device, but no other device has one before it: /dev/vda,
// /dev/vdb, ..., /dev/vdaa.
func (s Server) BootVolume(attached []VolumeAttachment) string {
	if s.Image != nil || len(attached) == 0 {
		return ""
	}
	first := slices.MinFunc(attached, func(a, b VolumeAttachment) int {
		return cmp.Or(cmp.Compare(len(a.Device), len(b.Device)), cmp.Compare(a.Device, b.Device))
	})
	if first.Device == "" {
		return ""
	}
	return first.VolumeID
}
