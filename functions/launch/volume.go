package launch

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
	"github.com/cloudfn/cloudfn/shared/openstack"
)

// bootVolume is the volume that a server boots from, instead of a disk of its flavor's size.
type bootVolume struct {
	SizeGB int                 `json:"size_gb,omitzero" required:"false" minimum:"1" maximum:"1000000"`
	Type   string              `json:"type,omitzero" required:"false" maxLength:"255"`
	Source domain.VolumeSource `json:"source,omitzero" required:"false" enum:"image,snapshot,volume" default:"image"`
	ID     givenID             `json:"id,omitzero" required:"false"` // of the source
	Name   string              `json:"name,omitzero" required:"false" maxLength:"255"`

	DeleteOnTermination *bool `json:"delete_on_termination,omitzero" required:"false" nullable:"false"`
}

// dataVolume is another volume of a server.
type dataVolume struct {
	SizeGB   int                 `json:"size_gb,omitzero" required:"false" minimum:"1" maximum:"1000000"`
	Type     string              `json:"type,omitzero" required:"false" maxLength:"255"`
	Source   domain.VolumeSource `json:"source,omitzero" required:"false" enum:"image,snapshot"`
	ID       givenID             `json:"id,omitzero" required:"false"` // of the source
	VolumeID givenID             `json:"volume_id,omitzero" required:"false"`
	Name     string              `json:"name,omitzero" required:"false" maxLength:"255"`

	DeleteOnTermination *bool `json:"delete_on_termination,omitzero" required:"false" nullable:"false"`
}

// sourceOf is the source with the default filled in.
func (v *bootVolume) sourceOf() domain.VolumeSource {
	if v.Source == "" {
		return domain.FromImage
	}
	return v.Source
}

// check reports what the volume's fields say together.
func (v *bootVolume) check(wrong *faults, field string) {
	if v == nil {
		return
	}
	isImage, isVolume := v.sourceOf() == domain.FromImage, v.sourceOf() == domain.FromVolume
	wrong.forbid(isImage && v.SizeGB == 0, field+".size_gb", "is missing: how large the volume is")
	wrong.forbid(isImage && v.ID != "", field+".id",
		"cannot be combined with the source image: it is the order's image")
	wrong.forbid(!isImage && v.ID == "", field+".id", "is missing: the id of the "+string(v.Source))
	const exists = "cannot be combined with the source volume: it exists already"
	wrong.forbid(isVolume && v.SizeGB != 0, field+".size_gb", exists)
	wrong.forbid(isVolume && v.Type != "", field+".type", exists)
	wrong.forbid(isVolume && v.Name != "", field+".name", exists)
	checkTexts(wrong, field, v.Type, v.Name)
}

// check reports what the volume's fields say together.
func (v dataVolume) check(wrong *faults, field string) {
	if v.VolumeID != "" {
		const exists = "cannot be combined with volume_id: the volume exists already"
		wrong.forbid(v.SizeGB != 0, field+".size_gb", exists)
		wrong.forbid(v.Type != "", field+".type", exists)
		wrong.forbid(v.Source != "", field+".source", exists)
		wrong.forbid(v.ID != "", field+".id", exists)
		wrong.forbid(v.Name != "", field+".name", exists)
		return
	}
	wrong.forbid(v.SizeGB == 0 && v.Source != domain.FromSnapshot, field+".size_gb",
		"is missing, and so is a volume_id")
	wrong.forbid(v.Source != "" && v.ID == "", field+".id", "is missing: the id of the "+string(v.Source))
	wrong.forbid(v.Source == "" && v.ID != "", field+".source", "is missing: what the id is of")
	checkTexts(wrong, field, v.Type, v.Name)
}

func checkTexts(wrong *faults, field, kind, name string) {
	for key, text := range map[string]string{"type": kind, "name": name} {
		if text != "" {
			wrong.add(domain.CheckName(field+"."+key, text, domain.MaxNameLength))
		}
	}
}

// ordered is the volume as it is ordered. It is deleted with its server, as a disk is, unless it existed before or the
// order says otherwise.
func (v *bootVolume) ordered() domain.ServerVolume {
	out := domain.ServerVolume{
		IsBoot: true, Source: v.sourceOf(), SourceID: string(lower(v.ID)), SizeGB: v.SizeGB, Type: v.Type, Name: v.Name,
	}
	if out.DeleteOnTermination = out.Source != domain.FromVolume; v.DeleteOnTermination != nil {
		out.DeleteOnTermination = *v.DeleteOnTermination
	}
	if out.Source == domain.FromVolume {
		out.ID, out.Source, out.SourceID = out.SourceID, "", ""
	}
	return out
}

// ordered is the volume as it is ordered. It is deleted with its server only if the order says so.
func (v dataVolume) ordered() domain.ServerVolume {
	return domain.ServerVolume{
		ID: string(lower(v.VolumeID)), Source: v.Source, SourceID: string(lower(v.ID)), SizeGB: v.SizeGB, Type: v.Type,
		Name: v.Name, DeleteOnTermination: domain.Deref(v.DeleteOnTermination),
	}
}

// canonical is equal for two boot volumes that mean the same.
func (v *bootVolume) canonical() *bootVolume {
	if v == nil {
		return nil
	}
	out := *v
	out.ID, out.Source = lower(v.ID), v.sourceOf()
	out.DeleteOnTermination = new(v.ordered().DeleteOnTermination)
	return &out
}

// canonicalVolumes is equal for two lists of volumes that mean the same.
func canonicalVolumes(volumes []dataVolume) []dataVolume {
	volumes = slices.Clone(volumes)
	for n := range volumes {
		v := &volumes[n]
		v.ID, v.VolumeID = lower(v.ID), lower(v.VolumeID)
		v.DeleteOnTermination = new(domain.Deref(v.DeleteOnTermination))
	}
	return volumes
}

// setVolumes sets the volumes of a server, each with its field.
func (i *item) setVolumes(boot *bootVolume, data []dataVolume) {
	if boot != nil {
		i.spec.Volumes = append(i.spec.Volumes, boot.ordered())
		i.volumeFields = append(i.volumeFields, i.fields["boot_volume"])
	}
	for n, v := range data {
		i.spec.Volumes = append(i.spec.Volumes, v.ordered())
		i.volumeFields = append(i.volumeFields, fmt.Sprintf("%s[%d]", i.fields["volumes"], n))
	}
}

// idField is the field with the id of a server's nth volume, or of what it is made from.
func (i item) idField(n int) string {
	if v := i.spec.Volumes[n]; v.IsNew() || v.IsBoot {
		return i.volumeFields[n] + ".id"
	}
	return i.volumeFields[n] + ".volume_id"
}

// bootsFromImage reports whether the server needs an image.
func (i item) bootsFromImage() bool {
	boot, ok := i.spec.BootVolume()
	return !ok || boot.Source == domain.FromImage
}

// withoutDisk is the image without what it needs of a flavor's disk.
func withoutDisk(image domain.Image) domain.Image {
	image.MinDiskGB, image.SizeBytes, image.VirtualBytes = 0, 0, 0
	return image
}

// volumeFacts are what a dry run compares the servers' volumes with. What no server has is not read.
type volumeFacts struct {
	types     []domain.VolumeType
	volumes   map[string]domain.Volume         // by id
	snapshots map[string]domain.VolumeSnapshot // by id
	quota     domain.VolumeQuota
	withheld  string // why they are unknown
}

// readVolumes reads what the servers' volumes are compared with. A volume or snapshot that does not exist is left out.
func readVolumes(ctx context.Context, cloud *openstack.Session, req createOrder) (out volumeFacts, err error) {
	out.volumes, out.snapshots = map[string]domain.Volume{}, map[string]domain.VolumeSnapshot{}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(portReaders)
	var mu sync.Mutex
	// read stores what a call has read, unless it is absent.
	read := func(call func() (store func(), err error)) {
		group.Go(func() error {
			store, err := call()
			if apperr.CodeOf(err) == apperr.NotFound {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				store()
			}
			return err
		})
	}
	var all []domain.ServerVolume
	for _, i := range req.items {
		all = append(all, i.spec.Volumes...)
	}
	isRead := map[string]bool{}
	for _, v := range all {
		switch id := cmp.Or(v.ID, v.SourceID); {
		case isRead[id]:
			continue
		case !v.IsNew():
			read(func() (func(), error) {
				found, err := cloud.Volume(ctx, id)
				return func() { out.volumes[id] = found }, err
			})
		case v.Source == domain.FromSnapshot:
			read(func() (func(), error) {
				found, err := cloud.VolumeSnapshot(ctx, id)
				return func() { out.snapshots[id] = found }, err
			})
		}
		isRead[cmp.Or(v.ID, v.SourceID)] = true
	}
	if len(all) > 0 {
		read(func() (func(), error) {
			types, err := cloud.VolumeTypes(ctx)
			return func() { out.types = types }, err
		})
		read(func() (func(), error) {
			quota, err := cloud.VolumeQuota(ctx)
			return func() { out.quota = quota }, err
		})
	}
	if err = group.Wait(); err != nil {
		out.withheld, err = whyWithheld(err)
	}
	return out, err
}

// checkVolumes compares the servers' volumes with what Cinder has.
func (r *launchReport) checkVolumes(req createOrder, facts volumeFacts) {
	count, gigabytes := 0, 0
	var last string
	for _, i := range req.items {
		for n, v := range i.spec.Volumes {
			switch {
			case facts.withheld != "":
				r.unchecked(i.volumeFields[n], facts.withheld)
			case v.IsNew():
				last, count = i.volumeFields[n], count+1
				gigabytes += max(v.SizeGB, facts.snapshots[v.SourceID].SizeGB)
				r.checkNew(i, n, facts)
			default:
				r.checkExisting(i.idField(n), v, facts)
			}
		}
	}
	for _, lack := range facts.quota.Shortages(count, gigabytes) {
		r.add(last, apperr.Quota, "%s", lack)
	}
}

// checkExisting rejects a volume that the server cannot get.
func (r *launchReport) checkExisting(field string, v domain.ServerVolume, facts volumeFacts) {
	found, ok := facts.volumes[v.ID]
	switch {
	case !ok:
		r.add(field, apperr.Invalid, "there is no volume %q", v.ID)
	case found.Status != "available" && (found.Status != "in-use" || !found.IsMultiattach):
		r.add(field, apperr.Conflict, "the volume is %s", found.Status)
	}
}

// checkNew rejects a volume that Cinder would not make.
func (r *launchReport) checkNew(i item, n int, facts volumeFacts) {
	v, field := i.spec.Volumes[n], i.volumeFields[n]
	if v.Source == domain.FromSnapshot {
		switch found, ok := facts.snapshots[v.SourceID]; {
		case !ok:
			r.add(i.idField(n), apperr.Invalid, "there is no volume snapshot %q", v.SourceID)
		case found.Status != "available":
			r.add(i.idField(n), apperr.Conflict, "the snapshot is %s", found.Status)
		case v.SizeGB > 0 && v.SizeGB < found.SizeGB:
			r.add(field+".size_gb", apperr.Invalid, "the snapshot needs %d GB", found.SizeGB)
		}
	}
	if v.Type != "" {
		if _, err := lookup.PickVolumeType(facts.types, lookup.Ref{Field: field + ".type", Value: v.Type}); err != nil {
			r.addError(err)
		}
	}
}
