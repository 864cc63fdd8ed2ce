package openstack

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/blockstorage/v3/snapshots"
	"github.com/gophercloud/gophercloud/v2/openstack/blockstorage/v3/volumes"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// versionFor is the microversion of a call that takes at least one, and gives volumes to a server.
func versionFor(least string, volumes ...domain.ServerVolume) string {
	has := func(is func(domain.ServerVolume) bool) bool { return slices.ContainsFunc(volumes, is) }
	switch {
	case has(domain.ServerVolume.NeedsStep): // which must be possible before there is a server
		return computeKeepVolumes
	case has(func(v domain.ServerVolume) bool { return v.Type != "" }):
		return computeVolumeTypes
	case has(func(v domain.ServerVolume) bool { return v.IsMultiattach }):
		return computeMultiattach
	}
	return least
}

// imageOf is the image of a create call; "" for a server that boots from a volume, as Nova shows it later.
func imageOf(spec domain.LaunchSpec) string {
	if _, ok := spec.BootVolume(); ok {
		return ""
	}
	return spec.ImageID
}

// devices are the disks of a server that gets volumes in its create call; nil = those that Nova makes without any. They
// have tags only if StepVolumes must find them: not every hypervisor supports tags.
func devices(spec domain.LaunchSpec) []servers.BlockDevice {
	if len(spec.Volumes) == 0 {
		return nil
	}
	var all []servers.BlockDevice
	if _, ok := spec.BootVolume(); !ok {
		all = append(all, servers.BlockDevice{
			SourceType: servers.SourceImage, UUID: spec.ImageID, DestinationType: servers.DestinationLocal,
			DeleteOnTermination: true,
		})
	}
	for n, v := range spec.Volumes {
		device := servers.BlockDevice{
			SourceType: servers.SourceVolume, UUID: v.ID, DestinationType: servers.DestinationVolume, BootIndex: -1,
		}
		if v.IsBoot {
			device.BootIndex = 0
		}
		if v.IsNew() {
			device.SourceType, device.UUID = sourceTypes[v.Source], v.SourceID
			device.VolumeSize, device.VolumeType, device.DeleteOnTermination = v.SizeGB, v.Type, true
		}
		if spec.SetsVolumes() && v.IsNew() {
			device.Tag = deviceTag(n)
		}
		all = append(all, device)
	}
	return all
}

var sourceTypes = map[domain.VolumeSource]servers.SourceType{
	"": servers.SourceBlank, domain.FromImage: servers.SourceImage, domain.FromSnapshot: servers.SourceSnapshot,
}

// deviceTag is the tag of the nth of a server's volumes.
func deviceTag(n int) string { return fmt.Sprintf("volume-%d", n) }

// SetVolumes gives the volumes of a server their names, and makes Nova delete or keep them with the server, as its
// order says. A volume that was detached meanwhile is not touched.
func (s *Session) SetVolumes(ctx context.Context, serverID string, ordered []domain.ServerVolume) error {
	nova, err := s.compute(ctx, computeKeepVolumes)
	if err != nil {
		return err
	}
	var body struct {
		Attached []struct {
			VolumeID            string `json:"volumeId"`
			Tag                 string `json:"tag"`
			DeleteOnTermination bool   `json:"delete_on_termination"`
		} `json:"volumeAttachments"`
	}
	address := nova.ServiceURL("servers", url.PathEscape(serverID), "os-volume_attachments")
	if err := get(ctx, nova, address, &body); err != nil {
		return err
	}
	for n, v := range ordered {
		for _, a := range body.Attached {
			if a.VolumeID != v.ID && (!v.IsNew() || a.Tag != deviceTag(n)) {
				continue
			}
			if a.DeleteOnTermination != v.DeleteOnTermination {
				change := map[string]any{"volumeAttachment": map[string]any{
					"volumeId": a.VolumeID, "delete_on_termination": v.DeleteOnTermination,
				}}
				_, err := nova.Put(ctx, address+"/"+url.PathEscape(a.VolumeID), change, nil,
					&gophercloud.RequestOpts{OkCodes: []int{http.StatusAccepted}})
				if err := classify("nova", err); err != nil {
					return err
				}
			}
			if v.Name != "" {
				if err := s.renameVolume(ctx, a.VolumeID, v.Name); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (s *Session) renameVolume(ctx context.Context, id, name string) error {
	return s.onVolume(ctx, cinderBase, func(cinder *gophercloud.ServiceClient) error {
		return volumes.Update(ctx, cinder, id, volumes.UpdateOpts{Name: &name}).Err
	})
}

// VolumeTypes lists the types of volumes that the project may use.
func (s *Session) VolumeTypes(ctx context.Context) ([]domain.VolumeType, error) {
	cinder, err := s.cinder(ctx, cinderBase)
	if err != nil {
		return nil, err
	}
	type page struct {
		Types []domain.VolumeType `json:"volume_types"`
		Links []link              `json:"volume_type_links"`
	}
	return everyPage(ctx, cinder, cinder.ServiceURL("types"), url.Values{},
		func(p *page) ([]domain.VolumeType, string) { return p.Types, linkTo(p.Links) },
		func(t domain.VolumeType) string { return t.ID })
}

type volumeSnapshot struct {
	ID       string            `json:"id"`
	Status   string            `json:"status"`
	Size     int               `json:"size"`
	Metadata map[string]string `json:"metadata"`
}

func (v volumeSnapshot) domain() domain.VolumeSnapshot {
	return domain.VolumeSnapshot{ID: v.ID, Status: v.Status, SizeGB: v.Size, Metadata: v.Metadata}
}

// VolumeSnapshot reads a snapshot of a volume.
func (s *Session) VolumeSnapshot(ctx context.Context, id string) (domain.VolumeSnapshot, error) {
	cinder, err := s.cinder(ctx, cinderBase)
	if err != nil {
		return domain.VolumeSnapshot{}, err
	}
	var found struct {
		Snapshot volumeSnapshot `json:"snapshot"`
	}
	err = get(ctx, cinder, cinder.ServiceURL("snapshots", url.PathEscape(id)), &found)
	return found.Snapshot.domain(), err
}

// VolumeSnapshots lists the snapshots of a volume.
func (s *Session) VolumeSnapshots(ctx context.Context, volumeID string) ([]domain.VolumeSnapshot, error) {
	cinder, err := s.cinder(ctx, cinderBase)
	if err != nil {
		return nil, err
	}
	type page struct {
		Snapshots []volumeSnapshot `json:"snapshots"`
		Links     []link           `json:"snapshots_links"`
	}
	found, err := everyPage(ctx, cinder, cinder.ServiceURL("snapshots", "detail"), url.Values{"volume_id": {volumeID}},
		func(p *page) ([]volumeSnapshot, string) { return p.Snapshots, linkTo(p.Links) },
		func(v volumeSnapshot) string { return v.ID })
	return convert(found, err, volumeSnapshot.domain)
}

// SnapshotVolume begins to make a snapshot of a volume that is attached to no server.
func (s *Session) SnapshotVolume(
	ctx context.Context, volumeID, name string, metadata map[string]string,
) (domain.VolumeSnapshot, error) {
	cinder, err := s.cinder(ctx, cinderBase)
	if err != nil {
		return domain.VolumeSnapshot{}, err
	}
	var made volumeSnapshot
	err = snapshots.Create(ctx, cinder, snapshots.CreateOpts{
		VolumeID: volumeID, Name: name, Metadata: metadata,
	}).ExtractInto(&struct {
		Snapshot *volumeSnapshot `json:"snapshot"`
	}{&made})
	return made.domain(), classify("cinder", err)
}

// VolumeQuota reads how many volumes the project may have, and has.
func (s *Session) VolumeQuota(ctx context.Context) (domain.VolumeQuota, error) {
	cinder, err := s.cinder(ctx, cinderBase)
	if err != nil {
		return domain.VolumeQuota{}, err
	}
	var found struct {
		Limits struct {
			Absolute struct {
				Volumes       int `json:"maxTotalVolumes"`
				VolumesUsed   int `json:"totalVolumesUsed"`
				Gigabytes     int `json:"maxTotalVolumeGigabytes"`
				GigabytesUsed int `json:"totalGigabytesUsed"`
			} `json:"absolute"`
		} `json:"limits"`
	}
	err = get(ctx, cinder, cinder.ServiceURL("limits"), &found)
	a := found.Limits.Absolute
	return domain.VolumeQuota{
		Volumes:   domain.QuotaItem{Max: a.Volumes, Used: a.VolumesUsed},
		Gigabytes: domain.QuotaItem{Max: a.Gigabytes, Used: a.GigabytesUsed},
	}, err
}

type attachment struct {
	VolumeID            string `json:"volumeId"`
	Device              string `json:"device"`
	DeleteOnTermination bool   `json:"delete_on_termination"`
}

func (a attachment) domain() domain.VolumeAttachment { return domain.VolumeAttachment(a) }

// Attachments lists the volumes of a server.
func (s *Session) Attachments(ctx context.Context, serverID string) ([]domain.VolumeAttachment, error) {
	var body struct {
		Attached []attachment `json:"volumeAttachments"`
	}
	err := s.getNova(ctx, computeAttachDelete, &body, "servers", serverID, "os-volume_attachments")
	return convert(body.Attached, err, attachment.domain)
}
