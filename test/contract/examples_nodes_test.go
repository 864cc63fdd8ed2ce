package contract_test

import (
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// nodeStory makes a host reservable, and opens it again. It waits for run-leases each time, so that nothing is left to
// do when the hosts are another test's.
func (s *story) nodeStory(t *testing.T) {
	t.Run("nodes", func(t *testing.T) {
		host := testkit.ReservableHosts(t)[0]
		s.is("compute-1.example.com", host)
		admin := variant{client: s.client.As(s.project.Token(t))} // since the story of leases its member is an admin
		becomes := func(want string) {
			t.Helper()
			testkit.Eventually(t, 3*time.Minute, host+" is reservable: "+want, func() bool {
				var node struct{ Reservable, Reason string }
				s.ok(t, "getNode", 200, admin).JSON(t, &node)
				return node.Reservable == want
			})
		}
		s.ok(t, "listNodes", 200, variant{client: admin.client, query: []string{"limit=1"}})
		s.project.Boot(t, "there", 1)
		var found struct {
			Nodes []struct {
				Name, Reservable string
				Servers          int
			}
		}
		s.ok(t, "listNodes", 200, variant{client: admin.client}).JSON(t, &found)
		for _, n := range found.Nodes {
			if n.Servers > 0 && n.Name != host {
				busy := variant{client: admin.client, path: "/v1/nodes/" + n.Name + "/reservable"}
				s.ok(t, "makeNodeReservable", 409, busy)
				break
			}
		}
		s.ok(t, "makeNodeReservable", 202, admin)
		becomes("yes")
		s.ok(t, "testNode", 200, admin)
		s.exec(t, `
with l as (insert into leases (project_id, id, domain_id, user_id, name, status, starts_at, ends_at, on_end)
    values ($1, gen_random_uuid(), '', 'u', 'booked', 'pending', now() + interval '1 day',
            now() + interval '2 days', 'shelve')
    returning *),
r as (insert into reservations (project_id, id, lease_id, position, type)
    select project_id, gen_random_uuid(), id, 0, 'host' from l returning *)
insert into allocations (project_id, reservation_id, node, during)
select $1, r.id, $2, tstzrange(l.starts_at, l.ends_at) from l, r`, s.project.ID, host)
		s.ok(t, "makeNodeUnreservable", 409, admin)
		s.exec(t, "delete from leases where name = 'booked'")
		s.exec(t, "update nodes set pool = 'leaving' where name = $1", host)
		s.ok(t, "testNode", 409, admin)
		s.ok(t, "makeNodeUnreservable", 202, admin)
		becomes("no")
		s.maintenance(t, admin)
	})
}

// maintenance takes the host out, and gives it back. It is empty, so its drain is soon over.
func (s *story) maintenance(t *testing.T, admin variant) {
	t.Helper()
	wrong := admin
	wrong.header = []string{"If-Match", `"77"`}
	s.ok(t, "changeNode", 412, wrong)
	for _, example := range []string{"muted", "labels"} { // the second one has events again
		mine := admin
		mine.example, mine.header = example, []string{"If-Match", "*"}
		mine.set = map[string]any{"alert": example == "labels"}
		s.ok(t, "changeNode", 200, mine)
	}
	// Others change the node again and again.
	s.exec(t, "create function lost() returns trigger language plpgsql as 'begin return null; end'")
	s.exec(t, "create trigger lost before update of labels on nodes for each row execute function lost()")
	mine := admin
	mine.header = []string{"If-Match", "*"}
	s.ok(t, "changeNode", 409, mine)
	s.exec(t, "drop trigger lost on nodes")
	var made struct{ Token string }
	s.ok(t, "createNodeToken", 201, admin).JSON(t, &made)
	agent := variant{client: s.client.As(""), header: []string{"Authorization", "Bearer " + made.Token}}
	s.ok(t, "reportNode", 204, agent)
	other := admin
	other.path = "/v1/nodes/metal-1/heartbeat"
	other.client, other.header = agent.client, agent.header
	s.ok(t, "reportNode", 403, other)
	s.ok(t, "revokeNodeToken", 204, admin)
	s.ok(t, "reportNode", 401, agent)
	s.ok(t, "listNodeServers", 200, admin)
	s.ok(t, "cordonNode", 200, admin)
	s.client.Tick(t, "watch-nodes") // sees it, and writes the event of its state
	s.ok(t, "uncordonNode", 200, admin)
	dry := admin
	other = admin
	dry.query = []string{"dry_run=true"}
	s.ok(t, "drainNode", 200, dry)
	s.ok(t, "drainNode", 202, admin)
	s.ok(t, "cancelDrain", 202, admin)
	testkit.Eventually(t, 2*time.Minute, "the drain has ended", func() bool {
		return testkit.Scalar[int](t, s.conn, "select count(*)::int from drains where due_at is not null") == 0
	})
	s.ok(t, "uncordonNode", 200, admin)
	s.ok(t, "deleteNode", 409, admin)
	for _, operation := range []string{"cordonNode", "drainNode", "uncordonNode"} { // of a host that Nova does not have
		other.path = "/v1/nodes/metal-1/" + map[string]string{
			"cordonNode": "cordon", "drainNode": "drain", "uncordonNode": "uncordon",
		}[operation]
		s.exec(t, "insert into nodes (name) values ('metal-1') on conflict do nothing")
		s.ok(t, operation, 409, other)
	}
	other.path = "/v1/nodes/metal-1"
	s.ok(t, "deleteNode", 204, other)
	// The next tick reads the hosts after a failure. The daemon's own one comes within a minute, this one now.
	s.exec(t, `insert into monitors (name, reason, failed_since) values ('nodes', 'nova is unavailable', now())
		on conflict (name) do update set reason = excluded.reason, failed_since = excluded.failed_since`)
	s.client.Tick(t, "watch-nodes")
	testkit.Eventually(t, 3*time.Minute, "the hosts were read", func() bool {
		return testkit.Scalar[bool](t, s.conn, "select bool_and(failed_since is null) from monitors")
	})
}
