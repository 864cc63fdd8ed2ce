package servers

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestVolumesOfServer attaches a volume in the real Nova and Cinder, and detaches it. Each request may be repeated.
func TestVolumesOfServer(t *testing.T) {
	t.Parallel()
	p := testkit.NewProject(t)
	t.Cleanup(func() { p.DeleteVolumes(t) })
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function).As(p.Token(t))
	made := p.Boot(t, "has-volume", 2)
	volume, err := p.Session(t).CreateVolume(t.Context(), domain.VolumeRequest{Name: "data", SizeGB: 1})
	if err != nil {
		t.Fatal(err)
	}
	await := func(status string) {
		t.Helper()
		testkit.Eventually(t, time.Minute, "the volume is "+status, func() bool {
			time.Sleep(200 * time.Millisecond)
			v, err := p.Session(t).Volume(t.Context(), volume)
			return err == nil && v.Status == status
		})
	}
	await("available")
	path, other := "/v1/servers/"+made[0].ID+"/volumes", "/v1/servers/"+made[1].ID+"/volumes"
	body := `{"volume_id": "` + volume + `", "delete_on_termination": true}`
	if a := app.Post(t, path, `{"volume_id": "`+uuid.NewString()+`"}`); a.Status != 404 {
		t.Errorf("an absent volume: got %d %s", a.Status, a.Body)
	}
	var attached ServerVolume
	a := app.Post(t, path, body)
	if a.JSON(t, &attached); a.Status != 201 || attached.ID != volume || attached.Name != "data" ||
		attached.SizeGB != 1 || !attached.DeleteOnTermination || attached.Boot || attached.Device == "" {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	await("in-use")
	if a := app.Post(t, path, body); a.Status != 200 || !strings.Contains(string(a.Body), volume) {
		t.Errorf("again: got %d %s", a.Status, a.Body)
	}
	if a := app.Post(t, other, body); a.Status != 409 || !strings.Contains(string(a.Body), made[0].ID) {
		t.Errorf("attached elsewhere: got %d %s", a.Status, a.Body)
	}
	var all ServerVolumes
	if app.Get(t, path).JSON(t, &all); len(all.Volumes) != 1 || all.Volumes[0].Status != "in-use" ||
		all.Volumes[0].Device != attached.Device || !all.Volumes[0].DeleteOnTermination {
		t.Errorf("got %+v", all.Volumes)
	}
	if app.Get(t, other).JSON(t, &all); len(all.Volumes) != 0 {
		t.Errorf("the other server has %+v", all.Volumes)
	}
	for path, want := range map[string]int{
		other + "/" + volume: 404, path + "/" + uuid.NewString(): 404, path + "/" + volume: 204,
	} {
		if a := app.Do(t, "DELETE", path, ""); a.Status != want {
			t.Errorf("%s: got %d %s, want %d", path, a.Status, a.Body, want)
		}
	}
	await("available")
	testkit.Eventually(t, time.Minute, "Nova has removed the attachment, after Cinder", func() bool {
		time.Sleep(200 * time.Millisecond)
		app.Get(t, path).JSON(t, &all)
		return len(all.Volumes) == 0
	})
	if a := app.Do(t, "DELETE", path+"/"+volume, ""); a.Status != 404 {
		t.Errorf("detached again: got %d %s", a.Status, a.Body)
	}
	stranger := testkit.NewProject(t)
	stranger.Grant(t, stranger.UserID, "admin")
	if a := app.As(stranger.Token(t)).Post(t, path, body); a.Status != 404 {
		t.Errorf("an admin of another project got %d %s", a.Status, a.Body)
	}
}

// TestBootVolume: a server boots from a volume of the real Cinder, which is marked, and which Nova does not detach.
func TestBootVolume(t *testing.T) {
	t.Parallel()
	p := testkit.NewProject(t)
	t.Cleanup(func() { p.DeleteVolumes(t) })
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function).As(p.Token(t))
	boot := domain.ServerVolume{IsBoot: true, Source: domain.FromImage, SourceID: testkit.Sandbox(t).ImageID, SizeGB: 1}
	boot.DeleteOnTermination = true
	server, err := p.Session(t).CreateServer(t.Context(), domain.LaunchSpec{
		FlavorID: p.DisklessFlavor(t), NetworkIDs: []string{testkit.Sandbox(t).NetworkID},
		Volumes: []domain.ServerVolume{boot, {SizeGB: 2, DeleteOnTermination: true}},
	}, "from-volume", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	p.Await(t, server, "ACTIVE")
	path := "/v1/servers/" + server + "/volumes"
	var all ServerVolumes
	app.Get(t, path).JSON(t, &all)
	for _, v := range all.Volumes {
		if v.Boot != (v.SizeGB == 1) {
			t.Errorf("got %+v", v)
		}
		if a := app.Do(t, "DELETE", path+"/"+v.ID, ""); v.Boot &&
			(a.Status != 400 || !strings.Contains(string(a.Body), "nova: ")) {
			t.Errorf("detach the boot volume: got %d %s", a.Status, a.Body)
		}
	}
	if len(all.Volumes) != 2 {
		t.Errorf("got %+v", all.Volumes)
	}
}
