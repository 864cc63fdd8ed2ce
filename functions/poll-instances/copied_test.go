package pollinstances

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

const unexpectedServer = "cloudfn.instance.unexpected_server.v1"

// visit asks for the order and has everything polled.
func (w *world) visit(t *testing.T) {
	t.Helper()
	p := testkit.Spawn(t, testkit.Env(t, w.database, map[string]string{"FUNCTION_TARGET": "launch"})).As(w.Token(t))
	if a := p.Get(t, "/v1/launch/"+w.order); a.Status != 200 {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	tick(t, w.poller(t, map[string]string{"POLL_FOLLOW": "0s"}), 204)
}

func (w *world) unexpected(t *testing.T) (found []string) {
	t.Helper()
	for _, id := range w.instances {
		for _, e := range w.events(t, id) {
			if e.Type == unexpectedServer {
				found = append(found, e.Data.UnexpectedServerID)
			}
		}
	}
	slices.Sort(found)
	return found
}

// TestLongCopiedTags: a server that somebody made with the tags of ours is never deleted, neither by a GET of the order
// nor by a poll, while the order runs, when it is done or months later. One event reports each such server.
func TestLongCopiedTags(t *testing.T) {
	t.Parallel()
	w := launched(t, 1)
	made := w.Servers(t)
	if len(made) != 1 {
		t.Fatalf("Nova has %+v", made)
	}
	own := made[0]
	all := *own.Tags
	copies := []string{
		w.Create(t, own.Name, all...),
		w.Create(t, own.Name, w.instances[0], "cloudfn-order:"+w.order),
	}
	slices.Sort(copies)
	for _, id := range copies {
		w.Await(t, id, "ACTIVE")
	}
	expect := func(when string) {
		t.Helper()
		w.exec(t, "update polls set full_at = full_at - interval '1 hour'")
		w.visit(t)
		for _, s := range w.Servers(t) {
			if s.Status != "ACTIVE" {
				t.Errorf("%s: %s is %s", when, s.ID, s.Status)
			}
		}
		if n := len(w.Servers(t)); n != 3 {
			t.Fatalf("%s: Nova has %d servers, want 3", when, n)
		}
		if got := w.unexpected(t); !slices.Equal(got, copies) {
			t.Errorf("%s: the events report %v, want %v", when, got, copies)
		}
		if got := testkit.Scalar[string](t, testkit.Connect(t, w.database),
			"select server_id from instances"); got != own.ID {
			t.Errorf("%s: the instance has become %s", when, got)
		}
	}
	w.exec(t, "update orders set status = 'running'")
	expect("while the order runs")
	expect("when it is done")
	testkit.SetClock(t, w.database, time.Now().Add(90*24*time.Hour))
	expect("months later")
}

// TestLongCopiedTagsOfNoServer: an instance without a server does not adopt somebody's server that carries its tags.
// Its order was rolled back, or interrupted before Nova was called.
func TestLongCopiedTagsOfNoServer(t *testing.T) {
	t.Parallel()
	w := &world{Project: testkit.NewProject(t), database: testkit.Database(t)}
	f := testkit.Sandbox(t)
	w.SetQuota(t, 0)
	p := testkit.Spawn(t, testkit.Env(t, w.database, map[string]string{"FUNCTION_TARGET": "launch"})).As(w.Token(t))
	w.order = uuid.NewString()
	a := p.Post(t, "/v1/launch", fmt.Sprintf(`{"id":%q,"name":"none","flavor":%q,"image":%q,"networks":[%q],"count":2,"on_failure":"rollback"}`,
		w.order, f.FlavorID, f.ImageID, f.NetworkID))
	if a.Status != 403 {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	w.SetQuota(t, -1)
	conn := testkit.Connect(t, w.database)
	for n := range 2 {
		w.instances = append(w.instances, testkit.Scalar[string](t, conn,
			"select id::text from instances order by position limit 1 offset $1", n))
	}
	id := w.Create(t, "none-2", w.instances[1], "cloudfn-order:"+w.order)
	w.Await(t, id, "ACTIVE")
	for _, status := range []string{"rolled_back", "running"} {
		if status == "running" { // as if its process had died before it sent anything
			w.exec(t, "update orders set status = 'running', claimed_until = null, spec = '{}'")
			w.exec(t, "update instances set state = 'requested', problem = null, seen_at = null where position = 1")
			w.exec(t, "delete from create_calls")
		}
		w.visit(t)
		if left := w.Servers(t); len(left) != 1 || left[0].ID != id || left[0].Status != "ACTIVE" {
			t.Fatalf("%s: Nova has %+v, want somebody's server", status, left)
		}
		if n := testkit.Scalar[int](t, conn, "select count(server_id)::int from instances"); n != 0 {
			t.Errorf("%s: %d instances adopted somebody's server", status, n)
		}
	}
	if got := w.unexpected(t); strings.Join(got, " ") != id {
		t.Errorf("the events report %v, want %s", got, id)
	}
}
