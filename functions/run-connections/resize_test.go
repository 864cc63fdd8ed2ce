package runconnections

import (
	"slices"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLongResizeByConnection needs the permission and room in the quota, and gives the room back when Nova reverts
// it. A rescue and a rebuild are done when Nova has accepted them.
func TestLongResizeByConnection(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c, p := w.trust(t), w.function(t, nil)
	server := w.Boot(t, "sized", 1)[0].ID
	at := slices.IndexFunc(c.Flavors, func(f domain.Flavor) bool { return f.ID == testkit.Sandbox(t).FlavorID })
	small := c.Flavors[at]
	at = slices.IndexFunc(c.Flavors, func(f domain.Flavor) bool {
		return f.Public && f.RAMMB > small.RAMMB && f.DiskGB >= small.DiskGB
	})
	large := c.Flavors[at]
	id := uuid.New()
	spec := domain.LaunchSpec{ImageID: testkit.Sandbox(t).ImageID}
	spec.Sized(small)
	w.exec(t, `insert into instances (project_id, id, position, name, server_id, state, origin, connection_id, spec)
  values ($1, $2, 0, 'sized', $3, 'active', 'launched', $4, $5)`, w.ID, id, server, c.ID, spec)
	do := func(action domain.Action, args domain.ActionArguments) domain.DelegatedAction {
		t.Helper()
		return w.done(t, p, w.act(t, c, id, domain.ActionRequest{Action: action},
			func(a *domain.DelegatedAction) { a.Arguments = args }))
	}
	stored := func() int {
		t.Helper()
		return testkit.Scalar[int](t, testkit.Connect(t, w.database), "select (spec->>'ram_mb')::int from instances")
	}
	resize := domain.ActionArguments{Flavor: large.Name}

	w.exec(t, `update connections set quota = jsonb_build_object('ram_mb', $2::int) where id = $1`, c.ID, small.RAMMB)
	wants(t, do(domain.Resize, resize), "quota_exceeded")
	if ram := stored(); ram != small.RAMMB {
		t.Errorf("without room in the quota %d MiB are stored", ram)
	}
	w.exec(t, `update connections set quota = '{}' where id = $1`, c.ID)
	wants(t, do(domain.Resize, domain.ActionArguments{Flavor: small.ID}), "invalid")
	wants(t, do(domain.Resize, resize), "")
	if ram := stored(); ram != large.RAMMB {
		t.Errorf("%d MiB are stored, want %d", ram, large.RAMMB)
	}
	wants(t, do(domain.RevertResize, domain.ActionArguments{}), "") // it waits for Nova
	w.Await(t, server, "ACTIVE")
	wants(t, do(domain.Stop, domain.ActionArguments{}), "")
	if ram := stored(); ram != small.RAMMB {
		t.Errorf("after it was reverted %d MiB are stored", ram)
	}
	w.Await(t, server, "SHUTOFF")

	wants(t, do(domain.Rebuild, domain.ActionArguments{Image: testkit.Sandbox(t).Image}), "")
	w.Await(t, server, "SHUTOFF")
	wants(t, do(domain.Rescue, domain.ActionArguments{}), "")
	w.Await(t, server, "RESCUE")
	wants(t, do(domain.Unrescue, domain.ActionArguments{}), "")
	w.Await(t, server, "ACTIVE")
	w.exec(t, "update connections set actions = '{start}' where id = $1", c.ID)
	for _, action := range []domain.Action{domain.Resize, domain.Rebuild, domain.Rescue} {
		wants(t, do(action, resize), "forbidden")
	}
}
