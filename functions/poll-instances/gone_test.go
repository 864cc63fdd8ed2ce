package pollinstances

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// track makes an instance of a server that runs, as far as is known.
func (w *world) track(t *testing.T) {
	t.Helper()
	id := uuid.NewString()
	w.exec(t, `insert into instances (project_id, id, position, name, server_id, state, raw_status, origin)
		values ('`+w.ID+"', '"+id+"', 0, 'x', '"+uuid.NewString()+"', 'active', 'ACTIVE', 'connected')")
	w.instances = append(w.instances, id)
}

// checkEvents checks the events of each instance of the project.
func (w *world) checkEvents(t *testing.T, want string) {
	t.Helper()
	for _, id := range w.instances {
		if got := w.states(t, id); got != want {
			t.Errorf("its events are %q, want %q", got, want)
		}
	}
}

// TestLongDeletedProject: a project is deleted from Keystone while its servers run on in Nova. The second check marks
// its instances as deleted, and the project is read no more. A disabled project is not gone. The test makes Nova refuse
// the list of the whole cloud, so that each project is read by itself.
func TestLongDeletedProject(t *testing.T) {
	t.Parallel()
	w := &world{Project: testkit.NewProject(t), database: testkit.Database(t)}
	disabled := &world{Project: testkit.NewProject(t), database: w.database}
	w.track(t)
	disabled.track(t)
	b := newBetweenAs(t, "admin")
	b.refuses = func(uri string) bool { return strings.Contains(uri, "all_tenants=1") }
	p := w.poller(t, with(b.env, map[string]string{"POLL_FOLLOW": "0s"}))
	conn := testkit.Connect(t, w.database)
	w.DeleteProject(t)
	disabled.Close(t)
	for range 2 { // the second tick comes too soon to count as another check
		tick(t, p, 204)
		w.checkEvents(t, "")
		disabled.checkEvents(t, "")
	}
	w.exec(t, "update instances set created_at = created_at - interval '1 hour'")
	w.exec(t, `update polls set gone_at = gone_at - interval '1 minute',
  failing_since = failing_since - interval '1 hour', since = since - interval '1 hour',
  full_at = full_at - interval '1 hour', not_before = null`)
	tick(t, p, 204)
	w.checkEvents(t, "deleted/DELETED")
	events := w.events(t, w.instances[0])
	if last := events[len(events)-1].Data; last.Fault == nil || last.Fault.Code != "project_gone" {
		t.Errorf("the reason is %+v", last.Fault)
	}
	disabled.checkEvents(t, "unknown/ACTIVE")
	tick(t, p, 204)
	if rows := testkit.Scalar[int](t, conn, "select count(*)::int from polls where project_id = $1", w.ID); rows != 0 {
		t.Error("it is still asked for")
	}
	if pause := testkit.Scalar[bool](t, conn,
		"select not_before > now() + interval '10 seconds' from polls where project_id = $1", disabled.ID); !pause {
		t.Error("a disabled project is asked for at each event")
	}
}
