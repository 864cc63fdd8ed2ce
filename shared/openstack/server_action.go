package openstack

import (
	"context"
	"net/http"

	"github.com/google/uuid"
	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// act makes a call to Nova that only begins something. An error has Nova's own words: 409 for a server that is locked,
// or in a state that does not allow it.
func (s *Session) act(ctx context.Context, begin func(*gophercloud.ServiceClient) error) error {
	nova, err := s.compute(ctx, computeBase)
	if err != nil {
		return err
	}
	return classify("nova", begin(nova))
}

// StartServer powers a stopped server on.
func (s *Session) StartServer(ctx context.Context, id string) error {
	return s.act(ctx, func(nova *gophercloud.ServiceClient) error { return servers.Start(ctx, nova, id).ExtractErr() })
}

// UnshelveServer restores a shelved server, on any host with room for it.
func (s *Session) UnshelveServer(ctx context.Context, id string) error {
	return s.act(ctx, func(nova *gophercloud.ServiceClient) error {
		return servers.Unshelve(ctx, nova, id, servers.UnshelveOpts{}).ExtractErr()
	})
}

// ShelveServer takes a server off its host and keeps its disk as an image. Where the cloud offloads at once it becomes
// SHELVED_OFFLOADED, else SHELVED.
func (s *Session) ShelveServer(ctx context.Context, id string) error {
	return s.act(ctx, func(nova *gophercloud.ServiceClient) error { return servers.Shelve(ctx, nova, id).ExtractErr() })
}

// OffloadServer makes a SHELVED server leave its host. By default only the cloud's admins may.
func (s *Session) OffloadServer(ctx context.Context, id string) error {
	return s.act(ctx, func(nova *gophercloud.ServiceClient) error {
		return servers.ShelveOffload(ctx, nova, id).ExtractErr()
	})
}

// SnapshotServer begins an image of the server's disk, and returns its id. ImagesOf finds it by the mark (zero =
// none). The image is the project's of the session.
// When the server is another project's, Nova offers it to that one, whose lists do not show it until it accepts.
func (s *Session) SnapshotServer(
	ctx context.Context, id, name string, mark uuid.UUID,
) (imageID string, err error) {
	nova, err := s.compute(ctx, computeImageID)
	if err != nil {
		return "", err
	}
	opts := servers.CreateImageOpts{Name: name}
	if mark != uuid.Nil {
		opts.Metadata = map[string]string{domain.SnapshotMark: mark.String(), domain.SnapshotServer: id}
	}
	imageID, err = servers.CreateImage(ctx, nova, id, opts).ExtractImageID()
	return imageID, classify("nova", err)
}

// RebootServer reboots a server: hard cuts its power, soft asks the guest.
func (s *Session) RebootServer(ctx context.Context, id string, hard bool) error {
	method := servers.SoftReboot
	if hard {
		method = servers.HardReboot
	}
	return s.act(ctx, func(nova *gophercloud.ServiceClient) error {
		return servers.Reboot(ctx, nova, id, servers.RebootOpts{Type: method}).ExtractErr()
	})
}

// StopServer powers a server off. It is a Conflict in a state that does not allow it.
func (s *Session) StopServer(ctx context.Context, id string) error {
	return s.act(ctx, func(nova *gophercloud.ServiceClient) error { return servers.Stop(ctx, nova, id).ExtractErr() })
}

// DeleteServer deletes a server. It succeeds when the server is gone already.
func (s *Session) DeleteServer(ctx context.Context, id string) error {
	return absentIsDone(s.act(ctx, func(nova *gophercloud.ServiceClient) error {
		return servers.Delete(ctx, nova,
			id).ExtractErr()
	}))
}

// absentIsDone is how a deletion ended: what does not exist is deleted.
func absentIsDone(err error) error {
	if apperr.CodeOf(err) == apperr.NotFound {
		return nil
	}
	return err
}

// RebuildServer replaces the server's disk from an image, with new user_data and metadata. A server that boots from a
// volume needs the image's id, and a cloud with Nova 2.93.
func (s *Session) RebuildServer(ctx context.Context, id string, r domain.Rebuild, fromVolume bool) error {
	version := computeRebuildData
	if fromVolume {
		version = computeRebuildVolume
	}
	nova, err := s.compute(ctx, version)
	if err != nil {
		return err
	}
	rebuild := map[string]any{"imageRef": r.ImageID, "user_data": encoded(r.UserData), "metadata": r.Metadata}
	_, err = nova.Post(ctx, nova.ServiceURL("servers", id, "action"), map[string]any{"rebuild": rebuild}, nil,
		&gophercloud.RequestOpts{OkCodes: []int{http.StatusAccepted}})
	return classify("nova", err)
}
