package testkit

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/blockstorage/v3/volumes"
	"github.com/gophercloud/gophercloud/v2/openstack/blockstorage/v3/volumetypes"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/volumeattach"
)

// AttachVolume makes a volume in the real Cinder and attaches it to a server. After the test the project's servers and
// volumes are deleted.
func (p *Project) AttachVolume(t testing.TB, serverID string) (volumeID string) {
	t.Helper()
	p.changed = true
	ctx, client := context.Background(), p.Login(t)
	cinder := BlockStorage(t, client)
	made := must(volumes.Create(ctx, cinder, volumes.CreateOpts{Name: "data", Size: 1}, nil).Extract())(t)
	t.Cleanup(func() { p.DeleteVolumes(t) })
	awaitVolume(t, cinder, made.ID, "available")
	check(t, volumeattach.Create(ctx, Compute(t, client), serverID, volumeattach.CreateOpts{VolumeID: made.ID}).Err)
	awaitVolume(t, cinder, made.ID, "in-use")
	return made.ID
}

func awaitVolume(t testing.TB, cinder *gophercloud.ServiceClient, id, status string) {
	t.Helper()
	Eventually(t, time.Minute, "volume "+id+" is "+status, func() bool {
		time.Sleep(200 * time.Millisecond)
		return must(volumes.Get(context.Background(), cinder, id).Extract())(t).Status == status
	})
}

// Attached returns the status of a volume in Cinder, and whether Nova shows it at a server.
func (p *Project) Attached(t testing.TB, volumeID, serverID string) (status string, isAttached bool) {
	t.Helper()
	client := p.Login(t)
	cinder := BlockStorage(t, client)
	volume := must(volumes.Get(context.Background(), cinder, volumeID).Extract())(t)
	attached := all(t, volumeattach.List(Compute(t, client), serverID), volumeattach.ExtractVolumeAttachments)
	return volume.Status, slices.ContainsFunc(attached, func(a volumeattach.VolumeAttachment) bool {
		return a.VolumeID == volumeID
	})
}

// MakeMultiattach lets several servers have a volume, in Cinder's database: no backend of the sandbox takes a volume
// whose type says so.
func MakeMultiattach(t testing.TB, volumeID string) {
	t.Helper()
	sandboxSQL(t, "cinder", "update volumes set multiattach = 1 where id = '"+volumeID+"'")
}

// VolumeTypeWithoutBackend returns the name of a volume type whose volumes no backend takes. It is deleted after the
// test.
func VolumeTypeWithoutBackend(t testing.TB) string {
	t.Helper()
	cinder := BlockStorage(t, Login(t, "admin"))
	made := must(volumetypes.Create(context.Background(), cinder, volumetypes.CreateOpts{
		Name: "nowhere-" + uuid.NewString(), ExtraSpecs: map[string]string{"volume_backend_name": "none"},
	}).Extract())(t)
	t.Cleanup(func() { _ = volumetypes.Delete(context.Background(), cinder, made.ID).ExtractErr() })
	return made.Name
}
