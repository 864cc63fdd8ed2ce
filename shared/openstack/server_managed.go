package openstack

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servergroups"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/volumeattach"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// MarkedServers lists all servers of the session's project that carry a tag, with their metadata and volumes.
func (s *Session) MarkedServers(ctx context.Context, tag string) ([]domain.Server, error) {
	query := url.Values{"tags": {tag}, "limit": {strconv.Itoa(watchPage)}}
	var all []domain.Server
	err := s.eachServer(ctx, computeFlavorInside, query, func(found *server) {
		d := found.domain()
		_ = json.Unmarshal(found.Metadata, &d.Metadata) // Nova gives texts by names
		for _, v := range found.Volumes {
			d.VolumeIDs = append(d.VolumeIDs, v.ID)
		}
		all = append(all, d)
	})
	return all, err
}

// RenameServer gives a server another name.
func (s *Session) RenameServer(ctx context.Context, id, name string) error {
	nova, err := s.compute(ctx, computeBase)
	if err != nil {
		return err
	}
	return classify("nova", servers.Update(ctx, nova, id, servers.UpdateOpts{Name: name}).Err)
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
		err := absentIsDone(classify("nova", servers.DeleteMetadatum(ctx, nova, id, url.PathEscape(key)).ExtractErr()))
		if err != nil {
			return err
		}
	}
	return nil
}

// AttachVolume attaches a volume to a server. It succeeds when the server has it.
func (s *Session) AttachVolume(ctx context.Context, serverID string, v domain.ServerVolume) error {
	nova, err := s.compute(ctx, versionFor(computeBase, v))
	if err != nil {
		return err
	}
	return classify("nova", volumeattach.Create(ctx, nova, serverID, volumeattach.CreateOpts{VolumeID: v.ID}).Err)
}

// versionFor is the microversion of a call that takes at least one, and gives volumes to a server.
func versionFor(least string, volumes ...domain.ServerVolume) string {
	if slices.ContainsFunc(volumes, func(v domain.ServerVolume) bool { return v.IsMultiattach }) {
		return computeMultiattach
	}
	return least
}

// devices are the disks of a server that gets volumes in its create call; nil = those that Nova makes without any.
func devices(spec domain.LaunchSpec) []servers.BlockDevice {
	if len(spec.Volumes) == 0 {
		return nil
	}
	all := []servers.BlockDevice{{
		SourceType: servers.SourceImage, UUID: spec.ImageID, DestinationType: servers.DestinationLocal,
		DeleteOnTermination: true,
	}}
	for _, v := range spec.Volumes {
		all = append(all, servers.BlockDevice{
			SourceType: servers.SourceVolume, UUID: v.ID, DestinationType: servers.DestinationVolume, BootIndex: -1,
		})
	}
	return all
}

// DetachVolume begins to detach a volume from a server. It succeeds when the server does not have it.
func (s *Session) DetachVolume(ctx context.Context, serverID, volumeID string) error {
	nova, err := s.compute(ctx, computeBase)
	if err != nil {
		return err
	}
	return absentIsDone(classify("nova", volumeattach.Delete(ctx, nova, serverID, volumeID).ExtractErr()))
}

// EnsureServerGroup returns the id of the project's server group of that name, which it makes if it is absent. It must
// not run twice at once for one name: names are not unique.
func (s *Session) EnsureServerGroup(ctx context.Context, name, policy string) (string, error) {
	known, err := s.serverGroups(ctx, name)
	if err != nil || len(known) > 0 {
		return firstOf(known), err
	}
	nova, err := s.compute(ctx, computeSoftGroups)
	if err != nil {
		return "", err
	}
	group, err := servergroups.Create(ctx, nova, servergroups.CreateOpts{
		Name: name, Policies: []string{policy},
	}).Extract()
	if err != nil {
		return "", classify("nova", err)
	}
	return group.ID, nil
}

func firstOf(all []string) string {
	if len(all) == 0 {
		return ""
	}
	return all[0]
}

// DeleteServerGroups deletes the project's server groups of that name.
func (s *Session) DeleteServerGroups(ctx context.Context, name string) error {
	known, err := s.serverGroups(ctx, name)
	if err != nil || len(known) == 0 {
		return err
	}
	nova, err := s.compute(ctx, computeSoftGroups)
	if err != nil {
		return err
	}
	for _, id := range known {
		if err := absentIsDone(classify("nova", servergroups.Delete(ctx, nova, id).ExtractErr())); err != nil {
			return err
		}
	}
	return nil
}

// serverGroups lists the ids of the project's server groups of that name, sorted.
func (s *Session) serverGroups(ctx context.Context, name string) ([]string, error) {
	all, err := s.ServerGroups(ctx)
	var ids []string
	for _, g := range all {
		if g.Name == name {
			ids = append(ids, g.ID)
		}
	}
	slices.Sort(ids)
	return ids, err
}

// ServerGroups lists the project's server groups.
func (s *Session) ServerGroups(ctx context.Context) (all []domain.ServerGroup, err error) {
	nova, err := s.compute(ctx, computeSoftGroups)
	if err != nil {
		return nil, err
	}
	for {
		var body struct {
			Groups []domain.ServerGroup `json:"server_groups"`
		}
		query := url.Values{"limit": {strconv.Itoa(watchPage)}, "offset": {strconv.Itoa(len(all))}}
		if err := getPage(ctx, nova, nova.ServiceURL("os-server-groups")+"?"+query.Encode(), &body); err != nil {
			return nil, classify("nova", err)
		}
		if len(body.Groups) == 0 {
			return all, nil
		}
		all = append(all, body.Groups...)
	}
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
