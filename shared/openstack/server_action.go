package openstack

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"
	servertags "github.com/gophercloud/gophercloud/v2/openstack/compute/v2/tags"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/volumeattach"

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

// ShelveServer takes a server off its host and keeps its disk as an image. Where the cloud offloads immediately it
// becomes SHELVED_OFFLOADED, else SHELVED.
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

// RebootServer reboots a server: hard cuts its power, soft signals the guest.
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

// DeleteServer deletes a server. It succeeds when the server is deleted already.
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
func (s *Session) RebuildServer(ctx context.Context, id string, r domain.RebuildRequest, fromVolume bool) error {
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

// ResizeServer gives a server another flavor, by default on another host. It waits in VERIFY_RESIZE for
// ConfirmMigration, and its old host keeps room for it until then.
func (s *Session) ResizeServer(ctx context.Context, id, flavorID string) error {
	return s.act(ctx, func(nova *gophercloud.ServiceClient) error {
		return servers.Resize(ctx, nova, id, servers.ResizeOpts{FlavorRef: flavorID}).ExtractErr()
	})
}

// TagServer gives a server a tag, if it has not got it. Nova allows it while the server is on a host.
func (s *Session) TagServer(ctx context.Context, id, tag string) error {
	nova, err := s.compute(ctx, computeTags)
	if err != nil {
		return err
	}
	if !isPathElement(tag) {
		return replaceTags(ctx, nova, id, func(tags []string) []string { return append(tags, tag) })
	}
	return classify("nova", servertags.Add(ctx, nova, id, url.PathEscape(tag)).ExtractErr())
}

// UntagServer removes a tag of a server, if it has it.
func (s *Session) UntagServer(ctx context.Context, id, tag string) error {
	nova, err := s.compute(ctx, computeTags)
	if err != nil {
		return err
	}
	if !isPathElement(tag) {
		return absentIsDone(replaceTags(ctx, nova, id, func(tags []string) []string {
			return slices.DeleteFunc(tags, func(t string) bool { return t == tag })
		}))
	}
	return absentIsDone(classify("nova", servertags.Delete(ctx, nova, id, url.PathEscape(tag)).ExtractErr()))
}

// isPathElement reports whether a text may be the last element of a path of Nova's: it reads a path as Latin-1, and a
// proxy before it may take dots for the path above, which is the server.
func isPathElement(text string) bool {
	return !domain.IsDots(text) && !strings.ContainsFunc(text, func(r rune) bool { return r >= utf8.RuneSelf })
}

// replaceTags replaces all tags of a server. A change of others between the read and that call is lost.
func replaceTags(
	ctx context.Context, nova *gophercloud.ServiceClient, id string, change func([]string) []string,
) error {
	before, err := servertags.List(ctx, nova, id).Extract()
	if err != nil {
		return classify("nova", err)
	}
	after := change(slices.Clone(before))
	if len(after) == len(before) || len(after) > len(before) && slices.Contains(before, after[len(after)-1]) {
		return nil
	}
	return classify("nova", servertags.ReplaceAll(ctx, nova, id, servertags.ReplaceAllOpts{Tags: after}).Err)
}

// LockServer keeps the server's owners from changing it. Only the cloud's admins can unlock what an admin has locked.
func (s *Session) LockServer(ctx context.Context, id string) error {
	return s.migrate(ctx, id, computeBase, map[string]any{"lock": nil}, http.StatusAccepted)
}

// UnlockServer ends the lock of a server, also its owner's own.
func (s *Session) UnlockServer(ctx context.Context, id string) error {
	return s.migrate(ctx, id, computeBase, map[string]any{"unlock": nil}, http.StatusAccepted)
}

// UnrescueServer begins to boot a server in RESCUE from its own disk again.
func (s *Session) UnrescueServer(ctx context.Context, id string) error {
	return s.migrate(ctx, id, computeBase, map[string]any{"unrescue": nil}, http.StatusAccepted)
}

// ResetServer makes a server in ERROR active for Nova, without any change on its host. By default only the cloud's
// admins may.
func (s *Session) ResetServer(ctx context.Context, id string) error {
	return s.migrate(ctx, id, computeBase, map[string]any{"os-resetState": map[string]any{"state": "active"}},
		http.StatusAccepted)
}

// RenameServer gives a server another name.
func (s *Session) RenameServer(ctx context.Context, id, name string) error {
	nova, err := s.compute(ctx, computeBase)
	if err != nil {
		return err
	}
	return classify("nova", servers.Update(ctx, nova, id, servers.UpdateOpts{Name: name}).Err)
}

// UpdateServer gives a server another name or description; "" = none. Nil = as it is.
func (s *Session) UpdateServer(ctx context.Context, id string, name, description *string) error {
	microversion, change := computeBase, map[string]any{}
	if name != nil {
		change["name"] = *name
	}
	if description != nil {
		microversion, change["description"] = computeDescription, *description
	}
	nova, err := s.compute(ctx, microversion)
	if err != nil {
		return err
	}
	_, err = nova.Put(ctx, nova.ServiceURL("servers", url.PathEscape(id)), map[string]any{"server": change}, nil,
		&gophercloud.RequestOpts{OkCodes: []int{http.StatusOK}})
	return classify("nova", err)
}

// SetServerMetadata sets items of a server's metadata, and removes others.
func (s *Session) SetServerMetadata(ctx context.Context, id string, set map[string]string, remove []string) error {
	nova, err := s.compute(ctx, computeBase)
	if err != nil {
		return err
	}
	if len(set) > 0 {
		if err := servers.UpdateMetadata(ctx, nova, id, servers.MetadataOpts(set)).Err; err != nil {
			return classify("nova", err)
		}
	}
	for _, key := range remove {
		if !isPathElement(key) {
			return apperr.New(apperr.Invalid, "metadata.%s: cannot be removed by Nova", key)
		}
		err := absentIsDone(classify("nova", servers.DeleteMetadatum(ctx, nova, id, url.PathEscape(key)).ExtractErr()))
		if err != nil {
			return err
		}
	}
	return nil
}

// AttachVolume attaches a volume to a server: its ID, IsMultiattach and DeleteOnTermination count.
func (s *Session) AttachVolume(ctx context.Context, serverID string, v domain.ServerVolume) error {
	microversion := versionFor(computeBase, domain.ServerVolume{ID: v.ID, IsMultiattach: v.IsMultiattach})
	if v.DeleteOnTermination {
		microversion = computeAttachDelete
	}
	nova, err := s.compute(ctx, microversion)
	if err != nil {
		return err
	}
	return classify("nova", volumeattach.Create(ctx, nova, serverID, volumeattach.CreateOpts{
		VolumeID: v.ID, DeleteOnTermination: v.DeleteOnTermination,
	}).Err)
}

// DetachVolume begins to detach a volume from a server, also from a shelved one. It succeeds when the server does not
// have it.
func (s *Session) DetachVolume(ctx context.Context, serverID, volumeID string) error {
	nova, err := s.compute(ctx, computeDetachShelved)
	if err != nil {
		return err
	}
	return absentIsDone(classify("nova", volumeattach.Delete(ctx, nova, serverID, volumeID).ExtractErr()))
}

// RebuildImage begins to replace a server's disk from an image, with user_data. Its metadata and key stay.
func (s *Session) RebuildImage(ctx context.Context, id, imageID string, userData domain.Secret) error {
	nova, err := s.compute(ctx, computeRebuildData)
	if err != nil {
		return err
	}
	rebuild := map[string]any{"imageRef": imageID, "user_data": nil}
	if userData != "" {
		rebuild["user_data"] = encoded(userData)
	}
	_, err = nova.Post(ctx, nova.ServiceURL("servers", id, "action"), map[string]any{"rebuild": rebuild}, nil,
		&gophercloud.RequestOpts{OkCodes: []int{http.StatusAccepted}})
	return classify("nova", err)
}

// Nova's scheduler chooses where a server moves to. Its answer only confirms that the migration has begun; its end is
// in the server's host, and in Nova's record of the migration. Moving servers is by default for the cloud's admins, and
// a lock does not keep those.

// LiveMigrate begins to move a running or paused server to another host. It is a Conflict in a state that does not
// allow it, such as while Nova moves it already.
func (s *Session) LiveMigrate(ctx context.Context, id string) error {
	return s.migrate(ctx, id, computeLiveMigrate, map[string]any{
		"os-migrateLive": map[string]any{"host": nil, "block_migration": "auto"},
	}, http.StatusAccepted)
}

// ColdMigrate begins to move a stopped server to another host. There it is in VERIFY_RESIZE until ConfirmMigration. It
// is a Conflict as LiveMigrate is.
func (s *Session) ColdMigrate(ctx context.Context, id string) error {
	return s.migrate(ctx, id, computeBase, map[string]any{"migrate": nil}, http.StatusAccepted)
}

// ConfirmMigration frees what a server in VERIFY_RESIZE has left on the host that it was on. It succeeds when that is
// under way already.
func (s *Session) ConfirmMigration(ctx context.Context, id string) error {
	err := s.migrate(ctx, id, computeBase, map[string]any{"confirmResize": nil}, http.StatusNoContent)
	code := apperr.CodeOf(err)
	if code == apperr.Conflict || code == apperr.Invalid { // "Instance has not been resized."
		return nil
	}
	return err
}

func (s *Session) migrate(ctx context.Context, id, microversion string, action map[string]any, want int) error {
	nova, err := s.compute(ctx, microversion)
	if err != nil {
		return err
	}
	_, err = nova.Post(ctx, nova.ServiceURL("servers", url.PathEscape(id), "action"), action, nil,
		&gophercloud.RequestOpts{OkCodes: []int{want}})
	return classify("nova", err)
}

// migration is an entry of Nova's records.
type migration struct {
	ID     int    `json:"id"`
	Server string `json:"instance_uuid"`
	Source string `json:"source_compute"`
	Target string `json:"dest_compute"`
	Status string `json:"status"`
	Type   string `json:"migration_type"`
}

// LastMigration reads Nova's newest record of a server leaving a host. found is false without one.
func (s *Session) LastMigration(ctx context.Context, id, host string) (last domain.Migration, found bool, err error) {
	nova, err := s.compute(ctx, computeMigrations)
	if err != nil {
		return last, false, err
	}
	var body struct {
		Migrations []migration `json:"migrations"`
	}
	address := nova.ServiceURL("os-migrations") + "?" + url.Values{"instance_uuid": {id}}.Encode()
	if err := get(ctx, nova, address, &body); err != nil {
		return last, false, err
	}
	body.Migrations = slices.DeleteFunc(body.Migrations, func(m migration) bool {
		return m.Server != id || m.Source != host
	})
	if len(body.Migrations) == 0 {
		return last, false, nil
	}
	m := slices.MaxFunc(body.Migrations, func(a, b migration) int { return cmp.Compare(a.ID, b.ID) })
	return domain.Migration{Status: m.Status, Target: m.Target, IsResize: m.Type == "resize"}, true, nil
}

// MigrationFault says in Nova's words why the last migration of a server failed; "" when Nova does not say it.
func (s *Session) MigrationFault(ctx context.Context, id string) (string, error) {
	entries, err := s.actionLog(ctx, id, computeActionList)
	if err != nil {
		return "", err
	}
	n := slices.IndexFunc(entries, func(a logged) bool { return a.Name == "migrate" || a.Name == "live-migration" })
	if n < 0 || entries[n].Message == "" {
		return "", nil
	}
	var body struct {
		Action logged `json:"instanceAction"`
	}
	err = s.getNova(ctx, computeActionFault, &body, "servers", id, "os-instance-actions", entries[n].RequestID)
	if code := apperr.CodeOf(err); code == apperr.Unsupported || code == apperr.NotFound {
		return "", nil
	}
	for _, e := range body.Action.Events {
		if e.Details != "" {
			return clean(e.Details), err
		}
	}
	return "", err
}
