package pollinstances

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLongFinalizeOrders: orders end without their caller where the service account is authorized: stopped servers, and
// rollbacks. The replica that took the order is killed as soon as Nova has accepted the servers.
func TestLongFinalizeOrders(t *testing.T) {
	t.Parallel()
	testkit.Heavy(t)
	w := &world{Project: testkit.NewProject(t), database: testkit.Database(t)}
	account := testkit.Trustee(t)
	w.abandon(t, 1, `"start":false`)
	reader := w.poller(t, nil)
	w.Await(t, w.servers[0], "ACTIVE")
	tick(t, reader, 204)
	if states := w.states(t, w.instances[0]); strings.Contains(states, "stopped") {
		t.Errorf("a reader stopped it: %s", states)
	}
	w.Grant(t, account, "member")
	member := w.poller(t, map[string]string{"POLL_FOLLOW": "90s"}) // a sandbox with much to do takes longer than 45s
	tick(t, member, 204)
	w.ends(t, w.instances[0], "stopped/SHUTOFF")
	w.orderEnds(t, "done")

	rollback := &world{Project: w.Project, database: w.database}
	rollback.abandon(t, 2, `"on_failure":"rollback"`)
	for _, id := range rollback.servers {
		rollback.Await(t, id, "ACTIVE")
	}
	rollback.Act(t, rollback.servers[0], "break")
	tick(t, member, 204)
	for n, id := range rollback.servers {
		rollback.Await(t, id, "DELETED")
		rollback.ends(t, rollback.instances[n], "deleted/DELETED")
	}
	rollback.orderEnds(t, "rolled_back")
}

// abandon places an order with a replica that is killed, and ends its claim.
func (w *world) abandon(t *testing.T, n int, more string) {
	t.Helper()
	f, conn := testkit.Sandbox(t), testkit.Connect(t, w.database)
	p := testkit.Spawn(t, testkit.Env(t, w.database, map[string]string{"FUNCTION_TARGET": "launch"}))
	w.order = uuid.NewString()
	body := fmt.Sprintf(`{"id":%q,"name":"left","flavor":%q,"image":%q,"networks":[%q],"count":%d,%s}`, w.order,
		f.FlavorID, f.ImageID, f.NetworkID, n, more)
	token := w.Token(t)
	var all sync.WaitGroup
	all.Go(func() {
		if a, err := p.As(token).Try(t, "POST", "/v1/launch", body, "Content-Type", "application/json"); err == nil {
			t.Logf("it lived to answer %d %s", a.Status, a.Body)
		}
	})
	testkit.Eventually(t, 3*time.Minute, "nova has accepted the servers", func() bool {
		return testkit.Scalar[int](t, conn, "select count(server_id)::int from instances where order_id = $1", w.order) == n
	})
	p.Kill()
	all.Wait()
	for i := range n {
		row := " from instances where order_id = $1 order by position limit 1 offset $2"
		w.instances = append(w.instances, testkit.Scalar[string](t, conn, "select id::text"+row, w.order, i))
		w.servers = append(w.servers, testkit.Scalar[string](t, conn, "select server_id"+row, w.order, i))
	}
	w.exec(t, "update orders set claimed_until = now()") // as time would end it
}

// orderEnds checks the status in the last event of the order.
func (w *world) orderEnds(t *testing.T, want string) {
	t.Helper()
	const status = "select data->>'status' from events where subject = $1 order by seq desc limit 1"
	if got := testkit.Scalar[string](t, testkit.Pool(t, w.database), status, w.order); got != want {
		t.Errorf("the order is %s, want %s", got, want)
	}
}
