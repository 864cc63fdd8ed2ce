package runconnections

import (
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLongConnectionLostWithCachedSession removes the role of trusts that were used already. Nova answers their tokens
// with 503, because Keystone answers Nova with 403. One event detects that, and ends the connections with their waiting
// orders and actions. It does not delay an action of another project's connection.
func TestLongConnectionLostWithCachedSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	other := &world{Project: testkit.NewProject(t), database: w.database, db: w.db}
	w.Grant(t, w.UserID, "reader")
	keystone, logins := counted(t)
	p := w.function(t, accountAt(t, keystone, nil))
	w.pauseForAnHour(t, "connections") // no trust is revoked a second time meanwhile
	healthy := other.trust(t)
	nothing := other.track(t, healthy)
	stop := func(w *world, c domain.Connection, instance uuid.UUID) domain.DelegatedAction {
		t.Helper()
		return w.ask(t, c, instance, domain.ActionRequest{Action: domain.Stop}, nil)
	}
	wants(t, other.done(t, p, stop(other, healthy, nothing)), "not_found") // which only Nova says
	var lost []domain.Connection
	for range 3 {
		c := w.trust(t)
		wants(t, w.done(t, p, stop(w, c, w.track(t, c))), "not_found")
		lost = append(lost, c)
	}
	w.RemoveRole(t, w.UserID, "member")
	before := logins.Load()
	var orders []domain.Order
	for _, c := range lost {
		orders = append(orders, w.place(t, c, 1, nil))
	}
	var event sync.WaitGroup
	event.Go(func() { _, _ = p.TryTick(t, "run-connections") })
	testkit.Eventually(t, time.Minute, "the event has begun", func() bool { return logins.Load() > before })
	action := stop(other, healthy, nothing)
	testkit.Eventually(t, time.Minute, "the healthy one's action has ended", func() bool {
		return other.action(t, action).Status != domain.ActionRunning
	})
	event.Wait()
	for n, c := range lost {
		if got := w.status(t, c); got != "lost" {
			t.Errorf("the connection is %s", got)
		}
		w.ends(t, c.ID, "active lost")
		got := w.order(t, orders[n].ID)
		if i := got.Instances[0]; got.Status != domain.OrderFailed || i.Problem == nil ||
			i.Problem.Code != "delegation_lost" {
			t.Errorf("the order is %s: %+v", got.Status, i.Problem)
		}
	}
	// with each trust, twice before and twice after the pause, and the account's own
	if n := logins.Load() - before; n > 24 {
		t.Errorf("there were %d logins", n)
	}
	wants(t, other.action(t, action), "not_found")
}

// track stores an instance of the connection whose server Nova does not know.
func (w *world) track(t *testing.T, c domain.Connection) (instance uuid.UUID) {
	t.Helper()
	instance = uuid.New()
	w.exec(t, `insert into instances (project_id, id, position, name, server_id, state, raw_status, origin, connection_id)
values ($1, $2, 0, 'tracked', $3, 'active', 'ACTIVE', 'connected', $4)`, w.ID, instance, uuid.NewString(), c.ID)
	return instance
}
