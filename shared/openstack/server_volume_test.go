package openstack

import (
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// TestNewVolumesOfServer: a server that boots from a volume has no image in its create call, and the lowest
// microversion that carries its volumes. They have tags if they must be found later.
func TestNewVolumesOfServer(t *testing.T) {
	t.Parallel()
	boot := domain.ServerVolume{
		IsBoot: true, Source: domain.FromImage, SourceID: "i", SizeGB: 9, DeleteOnTermination: true,
	}
	device := func(changes map[string]any) map[string]any {
		device := map[string]any{
			"source_type": "image", "uuid": "i", "boot_index": 0.0, "destination_type": "volume", "volume_size": 9.0,
			"delete_on_termination": true,
		}
		for key, value := range changes {
			if device[key] = value; value == nil {
				delete(device, key)
			}
		}
		return device
	}
	typed, kept := boot, boot
	typed.Type, kept.DeleteOnTermination = "ssd", false
	for name, tc := range map[string]struct {
		volumes []domain.ServerVolume
		version string
		want    []any
	}{
		"one to boot from": {[]domain.ServerVolume{boot}, computeCreateTags, []any{device(nil)}},
		"of a type": {
			[]domain.ServerVolume{typed}, computeVolumeTypes, []any{device(map[string]any{"volume_type": "ssd"})},
		},
		"one that stays, and a snapshot": {
			[]domain.ServerVolume{kept, {Source: domain.FromSnapshot, SourceID: "s", DeleteOnTermination: true}},
			computeKeepVolumes,
			[]any{device(map[string]any{"tag": "volume-0"}), device(map[string]any{
				"tag": "volume-1", "source_type": "snapshot", "uuid": "s", "boot_index": -1.0, "volume_size": nil,
			})},
		},
		"an existing one, and an empty one": {
			[]domain.ServerVolume{{ID: "v", IsBoot: true}, {SizeGB: 9, DeleteOnTermination: true}},
			computeCreateTags,
			[]any{
				device(map[string]any{
					"source_type": "volume", "uuid": "v", "volume_size": nil, "delete_on_termination": false,
				}),
				device(map[string]any{"source_type": "blank", "uuid": nil, "boot_index": -1.0}),
			},
		},
	} {
		s := newStub(t)
		s.answer("POST /compute/servers", 202, `{"server":{"id":"s1"}}`)
		spec := domain.LaunchSpec{FlavorID: "f", ImageID: "i", Volumes: tc.volumes}
		if _, err := s.session(t).CreateServer(t.Context(), spec, "web-1", "", nil); err != nil {
			t.Fatal(err)
		}
		create := s.to("/compute/servers")[0]
		body, _ := bodyOf(t, create)["server"].(map[string]any)
		if diff := cmp.Diff(tc.want, body["block_device_mapping_v2"]); diff != "" || body["imageRef"] != "" ||
			create.Header.Get("X-Openstack-Nova-Api-Version") != tc.version {
			t.Errorf("%s: %v, image %q, %s", name, create.Header, body["imageRef"], diff)
		}
	}
}

// TestSetVolumes changes only what differs from the order, finds new volumes by their tags and existing ones by their
// ids, and does not touch others. It can be repeated.
func TestSetVolumes(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	session := s.offering(t, s.catalog("compute", "volumev3"))
	s.answer("GET /compute/servers/s1/os-volume_attachments", 200, `{"volumeAttachments":[
		{"volumeId":"a","tag":"volume-0","delete_on_termination":true},
		{"volumeId":"b","tag":"volume-1","delete_on_termination":true},
		{"volumeId":"c","tag":null,"delete_on_termination":false},
		{"volumeId":"other","tag":"volume-7","delete_on_termination":true}]}`)
	s.answer("PUT /compute/servers/s1/os-volume_attachments/{id}", 202, ``)
	s.answer("PUT /volumev3/v3/p1/volumes/{id}", 200, `{"volume":{}}`)
	for range 2 {
		err := session.SetVolumes(t.Context(), "s1", []domain.ServerVolume{
			{SizeGB: 1},
			{SizeGB: 2, DeleteOnTermination: true, Name: "data"},
			{ID: "c", DeleteOnTermination: true},
			{ID: "detached", DeleteOnTermination: true},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	var changes []any
	for _, call := range s.calls {
		if call.Method == http.MethodPut {
			changes = append(changes, map[string]any{call.URL.Path: bodyOf(t, call)})
		}
	}
	attachment := func(id string, isDeleted bool) map[string]any {
		return map[string]any{"/compute/servers/s1/os-volume_attachments/" + id: map[string]any{
			"volumeAttachment": map[string]any{"volumeId": id, "delete_on_termination": isDeleted},
		}}
	}
	once := []any{
		attachment("a", false),
		map[string]any{"/volumev3/v3/p1/volumes/b": map[string]any{"volume": map[string]any{"name": "data"}}},
		attachment("c", true),
	}
	if diff := cmp.Diff(append(once, once...), changes); diff != "" {
		t.Error(diff)
	}
}

// TestAttachments: the request has the lowest microversion that shows what becomes of a volume.
func TestAttachments(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	const path = "/compute/servers/s1/os-volume_attachments"
	s.answer("GET "+path, 200, `{"volumeAttachments":[
		{"volumeId":"a","device":"/dev/vda","delete_on_termination":true},{"volumeId":"b","device":null}]}`)
	s.answer("POST "+path, 200, `{"volumeAttachment":{}}`)
	got, err := s.session(t).Attachments(t.Context(), "s1")
	want := []domain.VolumeAttachment{{VolumeID: "a", Device: "/dev/vda", DeleteOnTermination: true}, {VolumeID: "b"}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Error(err, diff)
	}
	versions := []string{computeAttachDelete}
	for _, tc := range []struct {
		volume  domain.ServerVolume
		version string
	}{
		{domain.ServerVolume{ID: "v"}, computeBase},
		{domain.ServerVolume{ID: "v", IsMultiattach: true}, computeMultiattach},
		{domain.ServerVolume{ID: "v", IsMultiattach: true, DeleteOnTermination: true}, computeAttachDelete},
	} {
		if err := s.session(t).AttachVolume(t.Context(), "s1", tc.volume); err != nil {
			t.Fatal(err)
		}
		versions = append(versions, tc.version)
	}
	var sent []string
	for _, call := range s.to(path) {
		sent = append(sent, call.Header.Get("X-Openstack-Nova-Api-Version"))
	}
	if diff := cmp.Diff(versions, sent); diff != "" {
		t.Error(diff)
	}
}

// TestVolumePage reads one volume more than the page has, and takes a link for more. A volume of a host has no server.
func TestVolumePage(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	session := s.offering(t, s.catalog("compute", "volumev3"))
	const two = `{"id":"a","size":1,"attachments":[{"server_id":null},{"server_id":"s"}]},{"id":"b","bootable":"true"}`
	s.pages("GET /volumev3/v3/p1/volumes/detail", map[string]string{
		"": `{"volumes":[` + two + `]}`, "b": `{"volumes":[{"id":"c"}],"volumes_links":[{"rel":"next","href":"x"}]}`,
		"c": `{"volumes":[]}`,
	})
	for _, tc := range []struct {
		limit   int
		marker  string
		want    int
		hasMore bool
	}{{1, "", 1, true}, {2, "", 2, false}, {1000, "", 2, false}, {1, "b", 1, true}, {1, "c", 0, false}} {
		q := domain.VolumeQuery{Limit: tc.limit, Marker: tc.marker}
		page, hasMore, err := session.VolumePage(t.Context(), q)
		if err != nil || len(page) != tc.want || hasMore != tc.hasMore {
			t.Errorf("%+v: got %+v, %t, %v", tc, page, hasMore, err)
		}
	}
	page, _, err := session.VolumePage(t.Context(), domain.VolumeQuery{Limit: 2, Status: "in-use"})
	if err != nil || len(page) != 2 || !page[1].IsBootable || cmp.Diff(page[0].Servers, []string{"s"}) != "" {
		t.Errorf("got %+v, %v", page, err)
	}
	calls := s.to("/volumev3/v3/p1/volumes/detail")
	first, last := calls[0].URL.Query(), calls[len(calls)-1].URL.Query()
	if first.Get("limit") != "2" || calls[2].URL.Query().Get("limit") != "1000" || last.Get("status") != "in-use" {
		t.Errorf("got %v and %v", first, last)
	}
}

// TestOwnVolume: an admin's token finds no volume of another project.
func TestOwnVolume(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	session := s.offering(t, s.catalog("compute", "volumev3"))
	s.answer("GET /volumev3/v3/p1/volumes/v", 200, `{"volume":{"id":"v","os-vol-tenant-attr:tenant_id":"p1"}}`)
	if _, err := session.OwnVolume(t.Context(), "v", "p1"); err != nil {
		t.Error(err)
	}
	if _, err := session.OwnVolume(t.Context(), "v", "p2"); apperr.CodeOf(err) != apperr.NotFound {
		t.Errorf("got %v", err)
	}
}
