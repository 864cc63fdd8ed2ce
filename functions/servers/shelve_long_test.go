package servers

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLongShelveUnshelveSnapshot of a tracked server: one image for each id, and no calls when there is nothing to do.
func TestLongShelveUnshelveSnapshot(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	t.Cleanup(func() { p.DeleteImages(t) })
	server := p.Boot(t, "kept", 1)[0].ID
	database := testkit.Database(t)
	conn, cloud := testkit.Connect(t, database), p.Session(t)
	app := testkit.Start(t, testkit.Env(t, database, nil), Function).As(p.Token(t))
	id := track(t, conn, p, server, domain.InstanceActive)

	key := uuid.New()
	body := fmt.Sprintf(`{"id":%q,"action":"snapshot","name":"before the upgrade"}`, key)
	snapshot := func() (a actionAnswer) {
		t.Helper()
		answer := app.Post(t, "/v1/servers/"+id+"/actions", body)
		answer.JSON(t, &a)
		a.status = answer.Status
		return a
	}
	made := snapshot()
	if !made.isAccepted(domain.InstanceActive) || made.ImageID == "" {
		t.Fatalf("snapshot: %+v", made)
	}
	loseResults(t, conn)
	for _, when := range []string{"its result is lost", "its result is stored"} {
		if a := snapshot(); a.status != 200 || !a.Changed || a.ImageID != made.ImageID {
			t.Errorf("the same snapshot when %s: %+v", when, a)
		}
	}
	testkit.Eventually(t, time.Minute, "the image is active", func() bool {
		image, err := cloud.Image(t.Context(), made.ImageID)
		if err != nil || image.Name != "before the upgrade" {
			t.Fatal(image, err)
		}
		return image.Status == "active"
	})
	of := domain.Server{ID: server, ProjectID: p.ID}
	if images, err := cloud.ImagesOf(t.Context(), key, of); err != nil || len(images) != 1 {
		t.Errorf("the images of the action are %v, %v", images, err)
	}
	p.Quiet(t, server)

	if a := sendAction(t, app, server, "unshelve"); !a.isIdle(domain.InstanceActive) {
		t.Errorf("unshelve while active: %+v", a)
	}
	if a := sendAction(t, app, server, "shelve"); !a.isAccepted(domain.InstanceUpdating) {
		t.Errorf("shelve: %+v", a)
	}
	p.Await(t, server, "SHELVED_OFFLOADED")
	if a := sendAction(t, app, server, "shelve"); !a.isIdle(domain.InstanceShelved) {
		t.Errorf("shelve while shelved: %+v", a)
	}
	if a := sendAction(t, app, server, "snapshot"); !a.isRejected("start", "unshelve", "deploy", "delete") {
		t.Errorf("snapshot while shelved: %+v", a)
	}
	many := app.Post(t, "/v1/servers/actions", fmt.Sprintf(`{"action":"unshelve","ids":[%q]}`, id))
	if many.Status != 202 {
		t.Errorf("unshelve one of many: %d %s", many.Status, many.Body)
	}
	p.Await(t, server, "ACTIVE")
	if a := sendAction(t, app, id, "stop"); !a.isAccepted(domain.InstanceUpdating) {
		t.Errorf("stop: %+v", a)
	}
	p.Await(t, server, "SHUTOFF")
	if a := sendAction(t, app, id, "unshelve"); !a.isRejected(
		"start", "reboot", "shelve", "snapshot", "deploy", "delete") {
		t.Errorf("unshelve while stopped: %+v", a)
	}
	actors := testkit.Scalar[string](t, conn, `
select string_agg(data->'actor'->>'action', ' ' order by seq) from events where subject = $1`, id)
	if actors != "shelve unshelve stop" {
		t.Errorf("the events are of %s", actors)
	}
}
