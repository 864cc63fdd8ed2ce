package servers

import (
	"context"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// volumeCloud is the part of OpenStack that the volumes of servers need.
type volumeCloud interface {
	Volume(ctx context.Context, id string) (domain.Volume, error)
	OwnVolume(ctx context.Context, id, projectID string) (domain.Volume, error)
	Attachments(ctx context.Context, serverID string) ([]domain.VolumeAttachment, error)
	AttachVolume(ctx context.Context, serverID string, v domain.ServerVolume) error
	DetachVolume(ctx context.Context, serverID, volumeID string) error
}

// attachments lists the volumes of a server, which is found by its own id or its instance's. boot is the id of the one
// that it boots from; "" = none.
func (s service) attachments(
	ctx context.Context, a access, id string,
) (server domain.Server, all []domain.VolumeAttachment, boot string, err error) {
	if server, err = s.ownServer(ctx, a, id); err != nil {
		return server, nil, "", err
	}
	all, err = a.cloud.Attachments(ctx, server.ID)
	return server, all, server.BootVolume(all), err
}

// Volumes lists the volumes of a server. One that Cinder does not show has no name and no size.
func (s service) Volumes(ctx context.Context, a access, id string) ([]ServerVolume, error) {
	_, all, boot, err := s.attachments(ctx, a, id)
	if err != nil {
		return nil, err
	}
	out := make([]ServerVolume, len(all))
	group, reading := errgroup.WithContext(ctx)
	group.SetLimit(readsInFlight)
	for n, attached := range all {
		group.Go(func() error {
			v, err := a.cloud.Volume(reading, attached.VolumeID)
			if code := apperr.CodeOf(err); err != nil && code != apperr.NotFound && code != apperr.Forbidden {
				return err
			}
			out[n] = showVolume(attached, v, attached.VolumeID == boot)
			return nil
		})
	}
	return out, group.Wait()
}

// Attach has Nova attach a volume to a server. isNew is false when the server has it already, which a request that is
// repeated after no answer finds: the volume stays as it was attached.
func (s service) Attach(
	ctx context.Context, a access, id, volumeID string, isDeletedWithServer bool,
) (out ServerVolume, isNew bool, err error) {
	server, all, boot, err := s.attachments(ctx, a, id)
	if err != nil {
		return out, false, err
	}
	v, err := a.cloud.OwnVolume(ctx, volumeID, a.ProjectID)
	if err != nil {
		return out, false, err
	}
	if n := slices.IndexFunc(all, isOf(volumeID)); n >= 0 {
		return showVolume(all[n], v, volumeID == boot), false, nil
	}
	if len(v.Servers) > 0 && !v.IsMultiattach { // Nova's 400 does not tell this from a wrong request
		return out, false, apperr.New(apperr.Conflict, "the volume %s is attached to the server %s: detach it first",
			volumeID, v.Servers[0])
	}
	err = a.cloud.AttachVolume(ctx, server.ID, domain.ServerVolume{
		ID: volumeID, IsMultiattach: v.IsMultiattach, DeleteOnTermination: isDeletedWithServer,
	})
	if err != nil {
		return out, false, err
	}
	return s.attached(ctx, a, server.ID, v, isDeletedWithServer), true, nil
}

// attached shows a volume that Nova has begun to attach, with the device that Nova chose if that can be read.
func (s service) attached(
	ctx context.Context, a access, serverID string, v domain.Volume, isDeletedWithServer bool,
) ServerVolume {
	made := domain.VolumeAttachment{VolumeID: v.ID, DeleteOnTermination: isDeletedWithServer}
	v.Status = "attaching"
	if later, err := a.cloud.Volume(ctx, v.ID); err == nil {
		v = later
	}
	all, err := a.cloud.Attachments(ctx, serverID)
	if n := slices.IndexFunc(all, isOf(v.ID)); err == nil && n >= 0 {
		made = all[n]
	}
	return showVolume(made, v, false)
}

func isOf(volumeID string) func(domain.VolumeAttachment) bool {
	return func(at domain.VolumeAttachment) bool { return at.VolumeID == volumeID }
}

// Detach has Nova detach a volume from a server. There is nothing to do while it does.
func (s service) Detach(ctx context.Context, a access, id, volumeID string) error {
	server, all, _, err := s.attachments(ctx, a, id)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(all, isOf(volumeID)) {
		return apperr.New(apperr.NotFound, "the server %s does not have the volume %s", id, volumeID)
	}
	v, err := a.cloud.Volume(ctx, volumeID)
	if err == nil && v.Status == "detaching" && !v.IsMultiattach {
		return nil
	}
	return a.cloud.DetachVolume(ctx, server.ID, volumeID)
}
