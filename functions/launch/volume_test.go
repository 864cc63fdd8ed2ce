package launch

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// volumesOf are the project's volumes in Cinder, by name. Nova gives an empty volume one of its own: such a volume goes
// by its size.
func volumesOf(t *testing.T, p *testkit.Project) map[string]domain.Volume {
	t.Helper()
	list, err := p.Session(t).Volumes(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]domain.Volume{}
	for _, v := range list {
		name := v.Name
		if strings.HasSuffix(name, "-blank-vol") {
			name = fmt.Sprintf("of %d GB", v.SizeGB)
		}
		named[name] = v
	}
	return named
}

// deleteServer deletes a server in Nova and waits for Cinder's part of it.
func deleteServer(t *testing.T, p *testkit.Project, id string, left ...string) {
	t.Helper()
	if err := p.Session(t).DeleteServer(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	slices.Sort(left)
	var got map[string]domain.Volume
	testkit.Eventually(t, time.Minute, "only these volumes are left: "+strings.Join(left, " "), func() bool {
		time.Sleep(500 * time.Millisecond)
		got = volumesOf(t, p)
		isFree := func(name string) bool { return got[name].Status == "available" }
		return slices.Equal(slices.Sorted(maps.Keys(got)), left) && !slices.ContainsFunc(left, func(name string) bool {
			return !isFree(name)
		})
	})
}

// TestLaunchWithVolumes boots from a volume in the real Nova and Cinder: what the order keeps stays when the server is
// deleted, with its name, and what it gives away goes. A server boots from the kept volume again.
func TestLaunchWithVolumes(t *testing.T) {
	t.Parallel()
	p, app, _ := start(t)
	t.Cleanup(func() { p.DeleteVolumes(t) })
	diskless := p.DisklessFlavor(t)
	request := body(t, object{
		"flavor":      diskless,
		"boot_volume": object{"size_gb": 1, "name": "root", "delete_on_termination": false},
		"volumes": []object{
			{"size_gb": 2, "name": "data"}, {"size_gb": 3, "delete_on_termination": true},
		},
	})
	if dry := app.Post(t, "/v1/launch?dry_run=true", request); !strings.Contains(string(dry.Body), `"ok":true`) {
		t.Errorf("dry run: got %s", dry.Body)
	}
	var order Order
	a := app.Post(t, "/v1/launch", request)
	if a.JSON(t, &order); a.Status != 202 || order.Status != domain.OrderDone {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	server := order.Instances[0].ServerID
	got := volumesOf(t, p)
	for name, size := range map[string]int{"root": 1, "data": 2, "of 3 GB": 3} {
		if v := got[name]; v.SizeGB != size || !slices.Equal(v.Servers, []string{server}) {
			t.Errorf("%s is %+v", name, v)
		}
	}
	deleteServer(t, p, server, "root", "data")

	again := body(t, object{
		"flavor": diskless, "image": nil,
		"boot_volume": object{"source": "volume", "id": strings.ToUpper(got["root"].ID), "delete_on_termination": true},
		"volumes":     []object{{"volume_id": got["data"].ID}},
	})
	a = app.Post(t, "/v1/launch", again)
	if a.JSON(t, &order); a.Status != 202 || order.Status != domain.OrderDone {
		t.Fatalf("from the kept volume: got %d %s", a.Status, a.Body)
	}
	inUse := app.Post(t, "/v1/launch?dry_run=true", again)
	for _, field := range []string{`"boot_volume.id"`, `"volumes[0].volume_id"`, "the volume is in-use"} {
		if !strings.Contains(string(inUse.Body), field) {
			t.Errorf("volumes in use: got %s without %s", inUse.Body, field)
		}
	}
	deleteServer(t, p, order.Instances[0].ServerID, "data")
}

// TestVolumesAreRolledBack: no volume that was made for the order is left, also one that it would have kept. One that
// existed before is left, also one that would go with its server.
func TestVolumesAreRolledBack(t *testing.T) {
	t.Parallel()
	p, app, _ := start(t)
	t.Cleanup(func() { p.DeleteVolumes(t) })
	session := p.Session(t)
	existing, err := session.CreateVolume(t.Context(), domain.VolumeRequest{Name: "mine", SizeGB: 1})
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, time.Minute, "the volume is available", func() bool {
		return volumesOf(t, p)["mine"].Status == "available"
	})
	a := app.Post(t, "/v1/launch", body(t, object{
		"id": uuid.NewString(), "on_failure": "rollback",
		"instances": []object{
			{
				"boot_volume": object{"size_gb": 2, "name": "root", "delete_on_termination": false},
				"volumes":     []object{{"volume_id": existing, "delete_on_termination": true}},
			},
			{"flavor": p.TooLargeFlavor(t)},
		},
	}))
	var order Order
	a.JSON(t, &order)
	testkit.Eventually(t, time.Minute, "the order is rolled back", func() bool {
		time.Sleep(time.Second)
		app.Get(t, "/v1/launch/"+order.ID.String()).JSON(t, &order)
		return order.Status == domain.OrderRolledBack
	})
	testkit.Eventually(t, time.Minute, "only the project's own volume is left", func() bool {
		got := volumesOf(t, p)
		return len(got) == 1 && got["mine"].Status == "available"
	})
}

// TestWrongVolumes are rejected with their fields before anything is stored.
func TestWrongVolumes(t *testing.T) {
	t.Parallel()
	_, app, _ := start(t)
	id := uuid.NewString()
	for name, tc := range map[string]struct {
		changes object
		field   string
	}{
		"without a size":            {object{"boot_volume": object{}}, "boot_volume.size_gb"},
		"an image by id":            {object{"boot_volume": object{"size_gb": 1, "id": id}}, "boot_volume.id"},
		"a snapshot without id":     {object{"image": nil, "boot_volume": object{"source": "snapshot"}}, "boot_volume.id"},
		"a snapshot and an image":   {object{"boot_volume": object{"source": "snapshot", "id": id}}, "image"},
		"an existing one of a size": {object{"image": nil, "boot_volume": object{"source": "volume", "id": id, "size_gb": 1}}, "boot_volume.size_gb"},
		"no image and no source":    {object{"image": nil, "boot_volume": object{"size_gb": 1}}, "image"},
		"too small":                 {object{"boot_volume": object{"size_gb": 0}}, "boot_volume.size_gb"},
		"an unknown source":         {object{"boot_volume": object{"size_gb": 1, "source": "tape"}}, "boot_volume.source"},
		"nothing of a data volume":  {object{"volumes": []object{{}}}, "volumes[0].size_gb"},
		"a size and an id":          {object{"volumes": []object{{"size_gb": 1, "volume_id": id}}}, "volumes[0].size_gb"},
		"an id of nothing":          {object{"volumes": []object{{"size_gb": 1, "id": id}}}, "volumes[0].source"},
		"no emoji":                  {object{"volumes": []object{{"size_gb": 1, "name": "🙂"}}}, "volumes[0].name"},
		"one for two servers":       {object{"count": 2, "volumes": []object{{"volume_id": id}}}, "volumes[0].volume_id"},
		"through a connection":      {object{"connection_id": id, "volumes": []object{{"size_gb": 1}}}, "volumes[0]"},
		"in an instance":            {object{"instances": []object{{"boot_volume": object{}}}}, "instances[0].boot_volume.size_gb"},
	} {
		a := app.Post(t, "/v1/launch", body(t, tc.changes))
		if a.Status != 400 || !testkit.Names(t, a, tc.field) {
			t.Errorf("%s: got %d %s, want %s", name, a.Status, a.Body, tc.field)
		}
	}
}

// TestDryRunOfVolumes compares with what the real Cinder has.
func TestDryRunOfVolumes(t *testing.T) {
	t.Parallel()
	p, app, _ := start(t)
	id := uuid.NewString()
	var report launchReport
	p.SetVolumeQuota(t, 10)
	image := testkit.Sandbox(t).Image
	a := app.Post(t, "/v1/launch?dry_run=true", body(t, object{
		"image": nil, "flavor": p.DisklessFlavor(t), "instances": []object{
			{"image": image, "boot_volume": object{"size_gb": 1, "type": "tape"}},
			{"boot_volume": object{"source": "snapshot", "id": id}, "volumes": []object{{"volume_id": id}}},
			{"image": image, "boot_volume": object{"size_gb": 10}},
		},
	}))
	a.JSON(t, &report)
	found := map[string]string{}
	for _, problem := range report.Problems {
		found[problem.Field] += problem.Detail
	}
	for field, detail := range map[string]string{
		"instances[0].boot_volume.type":     `there is no volume type "tape"`,
		"instances[1].boot_volume.id":       "there is no volume snapshot",
		"instances[1].volumes[0].volume_id": "there is no volume",
		"instances[2].boot_volume":          "needs 11 gigabytes of volumes, 10 of 10 are left",
	} {
		if !strings.Contains(found[field], detail) {
			t.Errorf("%s is %q: got %s", field, found[field], a.Body)
		}
	}
}
