package managed

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/flow"
	"github.com/cloudfn/cloudfn/shared/lookup"
)

// VolumeCloud is the part of OpenStack that volumes need.
type VolumeCloud interface {
	lookup.Images
	Volumes(ctx context.Context, key, value string) ([]domain.Volume, error)
	Volume(ctx context.Context, id string) (domain.Volume, error)
	CreateVolume(ctx context.Context, r domain.VolumeRequest) (id string, err error)
	DescribeVolume(ctx context.Context, id, name, description string) error
	SetVolumeMetadata(ctx context.Context, id string, set map[string]string, remove []string) error
	ExtendVolume(ctx context.Context, id string, sizeGB int, isAttached bool) error
	RetypeVolume(ctx context.Context, id, name string) error
	VolumeFault(ctx context.Context, id string) (string, error)
	DeleteVolume(ctx context.Context, id string) error
}

// VolumeDriver makes volumes of Cinder. Their mark is an item of their metadata.
type VolumeDriver struct{}

// Kinds implements Driver.
func (VolumeDriver) Kinds() []domain.Kind { return []domain.Kind{domain.KindVolume} }

// Needs implements Driver. What a volume is filled with may be any image of the cloud.
func (VolumeDriver) Needs(json.RawMessage) []Ref { return nil }

// List implements Driver. Cinder cannot list by the key of an item, so it lists the project's volumes.
func (VolumeDriver) List(
	ctx context.Context, s Session, members []domain.Member,
) (map[uuid.UUID]Object, error) {
	all, err := s.Cloud.Volumes(ctx, "", "")
	if err != nil {
		return nil, err
	}
	found := map[uuid.UUID][]Object{}
	for _, v := range all {
		if member, err := uuid.Parse(v.Metadata[markKey]); err == nil {
			found[member] = append(found[member], explained(ctx, s, volumeObject(v)))
		}
	}
	return byMark(found, members), nil
}

// Find implements Driver.
func (VolumeDriver) Find(ctx context.Context, s Session, id string) (Object, error) {
	v, err := s.Cloud.Volume(ctx, id)
	return explained(ctx, s, volumeObject(v)), err
}

// explained adds to a volume in error what Cinder says about it. Without that its status stays the reason.
func explained(ctx context.Context, s Session, o Object) Object {
	if o.State != ObjectError {
		return o
	}
	if fault, err := s.Cloud.VolumeFault(ctx, o.ID); err == nil && fault != "" {
		o.Reason += ": " + fault
	}
	return o
}

func volumeObject(v domain.Volume) Object {
	o := Object{
		ID: v.ID, Name: v.Name, State: volumeState(v.Status), CreatedAt: v.CreatedAt, Raw: v, Keep: true,
		Phase: "Cinder's status of the volume is " + v.Status, ChangedAt: v.UpdatedAt,
	}
	if o.State == ObjectError {
		o.Reason = o.Phase
	}
	return o
}

func volumeState(status string) ObjectState {
	switch {
	case status == "available", status == "in-use", status == "reserved", status == "awaiting-transfer":
		return ObjectReady
	case status == "deleting":
		return ObjectDeleting
	case strings.HasPrefix(status, "error"):
		return ObjectError
	}
	return ObjectWorking // creating, downloading, extending, retyping, attaching, backing-up, ...
}

// Create implements Driver.
func (VolumeDriver) Create(ctx context.Context, s Session, in Desired) (string, error) {
	mark, spec := in.Member.ID.String(), read[domain.VolumeSpec](in.Spec)
	made, err := s.Cloud.Volumes(ctx, markKey, mark)
	if err != nil {
		return "", unsent(err)
	}
	for _, v := range made {
		if v.Metadata[markKey] == mark && volumeState(v.Status) != ObjectDeleting {
			in.found()
			return v.ID, nil
		}
	}
	if uuid.Validate(spec.Type) == nil { // Cinder shows a volume's type by its name only
		return "", apperr.InvalidField("spec.type", "must be the name of a volume type, not its id")
	}
	image, err := volumeImage(ctx, s, in, spec.Image)
	if err != nil {
		return "", unsent(err)
	}
	metadata := map[string]string{}
	maps.Copy(metadata, spec.Metadata)
	metadata[markKey] = mark
	id, err := s.Cloud.CreateVolume(ctx, domain.VolumeRequest{
		Name: in.Name, Description: spec.Description, SizeGB: spec.SizeGB, Type: spec.Type, ImageID: image,
		Zone: spec.ZoneIn(in.Resource.Schedule), Metadata: metadata,
	})
	if apperr.CodeOf(err) == apperr.NotFound { // of a type; nothing else in the request is looked up so
		err = apperr.InvalidField("spec.type", apperr.As(err).Message)
	}
	return sent(id, err)
}

// volumeImage is the id of the image that a volume is filled with; "" when it is empty.
func volumeImage(ctx context.Context, s Session, in Desired, name string) (string, error) {
	if name == "" {
		return "", nil
	}
	image, err := findImage(ctx, s, in, name)
	return image.ID, err
}

// findImage finds an image by its id or name. It waits for one that is declared, too.
func findImage(ctx context.Context, s Session, in Desired, name string) (image domain.Image, err error) {
	found, err := s.images(ctx, name)
	if err != nil {
		return image, err
	}
	image, err = lookup.PickImage(found, lookup.Ref{Field: "spec.image", Value: name})
	_, isManaged := in.Inventory.Resource(domain.KindImage, name)
	switch {
	case isManaged && (apperr.CodeOf(err) == apperr.Invalid || err == nil && !lookup.IsActive(image)):
		return domain.Image{}, Waits("ImageNotReady", "image %s is not ready", name)
	}
	return image, err
}

// Differences implements Driver.
func (VolumeDriver) Differences(in Desired, o Object) []Difference {
	v, spec, made := raw[domain.Volume](o), read[domain.VolumeSpec](in.Spec), read[domain.VolumeSpec](in.Made.Spec)
	out := compare("name", in.Name, v.Name, InPlace)
	out = append(out, compare("description", domain.Stripped(spec.Description), v.Description, InPlace)...)
	delete(spec.Metadata, markKey) // it is not the user's
	out = append(out, missing("metadata", map[string]string{markKey: in.Member.ID.String()}, v.Metadata)...)
	out = append(out, entries("metadata", spec.Metadata, had(in, func(s domain.VolumeSpec) map[string]string {
		return s.Metadata
	}), v.Metadata)...)
	if domain.EqualInTables(spec.Type, []string{v.Type}) < 0 && spec.Type != "" { // Cinder looks it up in its tables
		out = append(out, compare("type", spec.Type, v.Type, InPlace)...)
	}
	switch {
	case spec.SizeGB > v.SizeGB:
		out = append(out, compare("size_gb", spec.SizeGB, v.SizeGB, InPlace)...)
	case spec.SizeGB < v.SizeGB:
		out = append(out, Difference{
			Field: "size_gb", Declared: spec.SizeGB, Actual: v.SizeGB, Way: Refused,
			Why: fmt.Sprintf("a volume cannot shrink: declare size_gb %d, or another volume", v.SizeGB),
		})
	}
	if in.Made.Number == 0 { // it is not known what the volume was made of
		return out
	}
	for _, d := range append(
		compare("image", spec.Image, made.Image, Refused),
		compare("zone", spec.ZoneIn(in.Resource.Schedule), made.ZoneIn(in.Made.Schedule), Refused)...,
	) {
		d.Why = "its change would destroy the data of the volume: declare another volume"
		out = append(out, d)
	}
	return out
}

// Update implements Driver. What only describes the volume changes immediately; its size and type take a while each.
func (VolumeDriver) Update(ctx context.Context, s Session, in Desired, o Object, differences []Difference) error {
	v, spec := raw[domain.Volume](o), read[domain.VolumeSpec](in.Spec)
	if differs(differences, "name") || differs(differences, "description") {
		if err := s.Cloud.DescribeVolume(ctx, o.ID, in.Name, spec.Description); err != nil {
			return err
		}
	}
	if set, remove := changes("metadata", differences); len(set)+len(remove) > 0 {
		if err := s.Cloud.SetVolumeMetadata(ctx, o.ID, set, remove); err != nil {
			return err
		}
	}
	if differs(differences, "size_gb") {
		return s.Cloud.ExtendVolume(ctx, o.ID, spec.SizeGB, v.Status == "in-use")
	}
	if differs(differences, "type") {
		return retype(ctx, s, o.ID, in.Member.ID.String(), spec.Type)
	}
	return nil
}

const (
	retypePause = 500 * time.Millisecond
	retypeReads = 20
)

// retype changes the type of a volume, and waits a while for the result: Cinder accepts a change that its backend then
// refuses, and the volume is as before.
func retype(ctx context.Context, s Session, id, mark, name string) error {
	if err := s.Cloud.RetypeVolume(ctx, id, name); err != nil {
		return err
	}
	for range retypeReads {
		flow.Sleep(ctx, retypePause)
		all, err := s.Cloud.Volumes(ctx, markKey, mark)
		if err != nil {
			return err
		}
		n := slices.IndexFunc(all, func(v domain.Volume) bool { return v.ID == id })
		switch {
		case n < 0 || all[n].Type == name:
			return nil
		case volumeState(all[n].Status) != ObjectWorking:
			return apperr.New(apperr.Conflict, "cinder did not change the type of the volume to %s: its backend may "+
				"not be able to without moving the volume", name)
		}
	}
	return nil
}

// Delete implements Driver. It waits while a server has the volume, or a snapshot is made of it.
func (VolumeDriver) Delete(ctx context.Context, s Session, o Object) error {
	v := raw[domain.Volume](o)
	switch {
	case len(v.Servers) > 0:
		return Waits("InUse", "volume %s is attached to server %s", v.Name, strings.Join(v.Servers, ", "))
	case o.State == ObjectDeleting:
		return nil
	case o.State == ObjectWorking:
		return Waits("Busy", "volume %s is %s", v.Name, v.Status)
	}
	return waitsOn(s.Cloud.DeleteVolume(ctx, o.ID), "InUse", apperr.Invalid, apperr.Conflict)
}
