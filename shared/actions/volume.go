package actions

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// VolumeCloud is the part of OpenStack that volumes of leases need.
type VolumeCloud interface {
	Volume(ctx context.Context, id string) (domain.Volume, error)
	Volumes(ctx context.Context, key, value string) ([]domain.Volume, error)
	VolumeFault(ctx context.Context, id string) (string, error)
	MakeVolume(ctx context.Context, r domain.VolumeRequest) (domain.Volume, error)
	DeleteVolume(ctx context.Context, id string) error
	Attachments(ctx context.Context, serverID string) ([]domain.VolumeAttachment, error)
	AttachVolume(ctx context.Context, serverID string, v domain.ServerVolume) error
	DetachVolume(ctx context.Context, serverID, volumeID string) error
	SetVolumes(ctx context.Context, serverID string, ordered []domain.ServerVolume) error
	VolumeSnapshots(ctx context.Context, volumeID string) ([]domain.VolumeSnapshot, error)
	SnapshotVolume(ctx context.Context, volumeID, name string, metadata map[string]string) (
		domain.VolumeSnapshot, error)
}

// Volume is a volume of a lease, and the server that it is attached to. Its steps may be repeated: what was made is
// found by its domain.VolumeMark. Each step gets what the steps before have found: their outcomes are stored.
type Volume struct {
	domain.VolumeTask

	ProjectID string // a volume of another project counts as deleted, also for admins
	ServerID  string // "" = it was deleted
}

// Attach does the next step until the server has the volume. isDone reports that it was the last one. That Nova may
// attach the volume is an outcome of its own, which is stored before the call: from then on the volume may hold data.
func (v Volume) Attach(
	ctx context.Context, cloud VolumeCloud,
) (out domain.ActionOutcome, isDone bool, err error) {
	found, ok, err := v.find(ctx, cloud)
	switch {
	case err != nil:
		return out, false, err
	case !ok && (!v.IsNew || v.IsUsed):
		return out, false, apperr.New(apperr.NotFound, "there is no volume %s", v.ID)
	case !ok:
		made, err := cloud.MakeVolume(ctx, domain.VolumeRequest{
			Name: v.Name, SizeGB: v.SizeGB, Type: v.Type, Metadata: v.marks(),
		})
		if apperr.CodeOf(err) == apperr.NotFound { // of its type; nothing else in the request is looked up so
			err = apperr.Wrap(apperr.Conflict, err, "%s", apperr.As(err).Message)
		}
		return domain.ActionOutcome{VolumeID: made.ID}, false, err
	}
	at, isAttached, err := v.attachment(ctx, cloud, found.ID)
	out = domain.ActionOutcome{VolumeID: found.ID, IsUsed: isAttached}
	isFree := found.Status == "available" || found.Status == "in-use" && found.IsMultiattach
	switch {
	case err != nil:
		return out, false, err
	case isAttached && found.Status == "in-use":
		if at.DeleteOnTermination { // its OnEnd alone decides what becomes of it
			err = cloud.SetVolumes(ctx, v.ServerID, []domain.ServerVolume{{ID: found.ID}})
		}
		return out, err == nil, err
	case strings.HasPrefix(found.Status, "error"):
		return out, false, v.failed(ctx, cloud, found)
	case isAttached: // Nova is at work on it
		return out, false, nil
	case isFree && !v.IsUsed:
		out.IsUsed = true
		return out, false, nil
	case isFree:
		return out, false, cloud.AttachVolume(ctx, v.ServerID, domain.ServerVolume{
			ID: found.ID, IsMultiattach: found.IsMultiattach,
		})
	case isElsewhere(found):
		return out, false, elsewhere(found)
	}
	return out, false, nil // Cinder is at work on it
}

// attachment is how the server has the volume, by Nova: Cinder does not show the servers of a volume that is reserved
// for a shelved one.
func (v Volume) attachment(
	ctx context.Context, cloud VolumeCloud, volumeID string,
) (at domain.VolumeAttachment, ok bool, err error) {
	if v.ServerID == "" {
		return at, false, nil
	}
	all, err := cloud.Attachments(ctx, v.ServerID)
	if apperr.CodeOf(err) == apperr.NotFound { // the server is deleted
		return at, false, nil
	}
	n := slices.IndexFunc(all, func(a domain.VolumeAttachment) bool { return a.VolumeID == volumeID })
	if err != nil || n < 0 {
		return at, false, err
	}
	return all[n], true, nil
}

// failed is why a volume cannot be attached. A new one that Cinder could not make is deleted first, so that the next
// attempt makes another.
func (v Volume) failed(ctx context.Context, cloud VolumeCloud, found domain.Volume) error {
	reason := "Cinder's status of the volume " + found.ID + " is " + found.Status
	if fault, err := cloud.VolumeFault(ctx, found.ID); err == nil && fault != "" {
		reason += ": " + fault
	}
	if v.IsNew && !v.IsUsed && found.Status == "error" {
		if err := cloud.DeleteVolume(ctx, found.ID); err != nil {
			return err
		}
	}
	return apperr.New(apperr.Conflict, "%s", reason)
}

// Detach does the next step until the server does not have the volume, and what its OnEnd says is done. A volume that
// its owner has deleted needs nothing.
func (v Volume) Detach(
	ctx context.Context, cloud VolumeCloud,
) (out domain.ActionOutcome, isDone bool, err error) {
	found, ok, err := v.find(ctx, cloud)
	if err != nil || !ok {
		return out, err == nil, err
	}
	_, isAttached, err := v.attachment(ctx, cloud, found.ID)
	if err != nil {
		return out, false, err
	}
	out.IsUsed = isAttached
	onEnd := v.OnEnd
	if !v.IsUsed {
		if onEnd = domain.VolumeEndKeep; v.IsNew { // it is empty
			onEnd = domain.VolumeEndDelete
		}
	}
	isMoving := slices.Contains([]string{"attaching", "detaching", "deleting", "creating"}, found.Status)
	switch {
	case isMoving, isAttached && !v.IsUsed: // that it is used is stored first
		return out, false, nil
	case isAttached:
		return out, false, cloud.DetachVolume(ctx, v.ServerID, found.ID)
	case onEnd == domain.VolumeEndKeep:
		return out, true, nil
	case isElsewhere(found):
		return out, false, elsewhere(found)
	case onEnd == domain.VolumeEndSnapshot:
		return v.snapshot(ctx, cloud, found)
	case found.Status == "error_deleting":
		return out, false, v.failed(ctx, cloud, found)
	}
	err = cloud.DeleteVolume(ctx, found.ID)
	if apperr.CodeOf(err) == apperr.Invalid { // such as one with snapshots
		err = apperr.Wrap(apperr.Conflict, err, "the volume %s is not deleted: %s", found.ID, apperr.As(err).Message)
	}
	return out, false, err
}

// snapshot waits for the volume's snapshot, and makes it once.
func (v Volume) snapshot(
	ctx context.Context, cloud VolumeCloud, of domain.Volume,
) (out domain.ActionOutcome, isDone bool, err error) {
	all, err := cloud.VolumeSnapshots(ctx, of.ID)
	if err != nil {
		return out, false, err
	}
	n := slices.IndexFunc(all, func(s domain.VolumeSnapshot) bool { return v.isMarked(s.Metadata) })
	if n < 0 {
		made, err := cloud.SnapshotVolume(ctx, of.ID, cmp.Or(of.Name, of.ID), v.marks())
		return domain.ActionOutcome{SnapshotID: made.ID}, false, err
	}
	out.SnapshotID = all[n].ID
	if strings.HasPrefix(all[n].Status, "error") {
		return out, false, apperr.New(apperr.Conflict, "the snapshot %s of the volume %s is in %s: delete it, and "+
			"another is made", out.SnapshotID, of.ID, all[n].Status)
	}
	return out, all[n].Status == "available", nil
}

// find finds the volume. ok is false without one. A new one that was never attached is found by its mark: another
// one may have replaced it. Of several, which a lost response does not make, it is the oldest.
func (v Volume) find(ctx context.Context, cloud VolumeCloud) (found domain.Volume, ok bool, err error) {
	if v.ID != "" && (v.IsUsed || !v.IsNew) {
		found, err = cloud.Volume(ctx, v.ID)
		if apperr.CodeOf(err) == apperr.NotFound || err == nil && !v.isOwn(found) {
			return domain.Volume{}, false, nil
		}
		return found, err == nil, err
	}
	all, err := cloud.Volumes(ctx, domain.VolumeMark, v.Reservation.String())
	all = slices.DeleteFunc(all, func(other domain.Volume) bool {
		return !v.isMarked(other.Metadata) || !v.isOwn(other) || strings.HasSuffix(other.Status, "deleting")
	})
	if err != nil || len(all) == 0 {
		return found, false, err
	}
	return slices.MinFunc(all, func(a, b domain.Volume) int { return a.CreatedAt.Compare(b.CreatedAt) }), true, nil
}

func (v Volume) isOwn(found domain.Volume) bool {
	return found.ProjectID == "" || found.ProjectID == v.ProjectID
}

func (v Volume) isMarked(metadata map[string]string) bool {
	return metadata[domain.VolumeMark] == v.Reservation.String()
}

func (v Volume) marks() map[string]string {
	return map[string]string{domain.VolumeMark: v.Reservation.String()}
}

// isElsewhere reports whether a volume that the lease's server does not have is another one's.
func isElsewhere(v domain.Volume) bool { return v.Status == "reserved" || len(v.Servers) > 0 }

// elsewhere is the refusal of a volume that its owner has given to another server.
func elsewhere(v domain.Volume) error {
	if len(v.Servers) == 0 {
		return apperr.New(apperr.Conflict, "the volume %s is reserved for another server: detach it first", v.ID)
	}
	return apperr.New(apperr.Conflict, "the volume %s is attached to the server %s: detach it first", v.ID,
		v.Servers[0])
}
