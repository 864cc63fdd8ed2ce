package runconnections

import (
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLongShelveAndSnapshot through a connection: done when the image is active, and when the server is off its host. A
// connection without the permission does neither.
func TestLongShelveAndSnapshot(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	t.Cleanup(func() { w.DeleteImages(t) })
	c, p := w.trust(t), w.function(t, nil)
	server := w.Boot(t, "kept", 1)[0].ID
	id := uuid.New()
	w.exec(t, `insert into instances (project_id, id, position, name, server_id, state, origin, connection_id)
  values ($1, $2, 0, 'kept', $3, 'active', 'launched', $4)`, w.ID, id, server, c.ID)
	do := func(action domain.Action, name string) domain.DelegatedAction {
		t.Helper()
		return w.done(t, p, w.ask(t, c, id, domain.ActionRequest{Action: action},
			func(a *domain.DelegatedAction) { a.ImageName = name }))
	}
	for _, name := range []string{"mine", ""} {
		made := do(domain.Snapshot, name)
		wants(t, made, "")
		images, err := w.Session(t).ImagesOf(t.Context(), made.ID,
			domain.Server{ID: server, ProjectID: w.ID})
		if err != nil || len(images) != 1 || images[0].ID != made.ImageID || images[0].Status != "active" {
			t.Fatalf("the images of %+v are %+v, %v", made, images, err)
		}
		if name != "" && images[0].Name != name {
			t.Errorf("the image is named %s", images[0].Name)
		}
	}
	wants(t, do(domain.Shelve, ""), "")
	w.Await(t, server, "SHELVED_OFFLOADED")
	wants(t, do(domain.Snapshot, ""), "conflict")
	wants(t, do(domain.Unshelve, ""), "")
	w.Await(t, server, "ACTIVE")
	w.exec(t, "update connections set actions = '{start,stop}' where id = $1", c.ID)
	wants(t, do(domain.Shelve, ""), "forbidden")
	wants(t, do(domain.Snapshot, ""), "forbidden")
	const ends = "select count(*)::int from events where type = $1 and data->>'image_id' <> ''"
	if n := testkit.Scalar[int](t, testkit.Connect(t, w.database), ends, domain.ActionEvent); n != 2 {
		t.Errorf("%d events have an image", n)
	}
}
