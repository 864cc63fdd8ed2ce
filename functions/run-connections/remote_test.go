package runconnections

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLongOrderInOtherCloud uses the sandbox under another URL, which makes it another cloud. Its servers are followed
// to their end. Their state is unknown while that cloud is away, and after the connection has ended.
func TestLongOrderInOtherCloud(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var away atomic.Bool
	keystone, _ := testkit.Intercept(t, strings.TrimSuffix(testkit.Compute(t, testkit.Login(t, "admin")).Endpoint, "/"),
		func(*http.Request) {
			if away.Load() {
				panic(http.ErrAbortHandler)
			}
		})
	elsewhere := testkit.RedirectTo(t, map[string]string{"compute": keystone})
	c := w.credential(t, elsewhere.URL())
	p := w.function(t, nil)
	order := w.finish(t, p, w.place(t, c, 2, nil).ID)
	if order.Status != domain.OrderDone || !order.Instances[0].Remote {
		t.Fatalf("the order is %s: %+v", order.Status, order.Instances)
	}
	gone, kept := order.Instances[0], order.Instances[1]
	polls := postgres.Polls{DB: w.db}
	if err := polls.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	if followed, err := polls.ListFollowed(t.Context()); err != nil || len(followed) != 0 {
		t.Errorf("poll-instances follows %+v %v", followed, err)
	}
	now := func() { w.exec(t, "update connections set read_at = null, swept_at = null") }
	w.Delete(t, gone.ServerID)
	w.Stop(t, kept.ServerID)
	now()
	tick(t, p)
	w.ends(t, gone.ID, "active") // it may be back
	w.ends(t, kept.ID, "active stopped")
	w.exec(t, "update instances set missed_at = missed_at - interval '1 minute'")
	now()
	tick(t, p)
	w.ends(t, gone.ID, "active deleted")

	away.Store(true)
	now()
	tick(t, p)
	w.ends(t, kept.ID, "active stopped")
	if got := w.text(t, "select failures::text || (silent_since is not null)::text from connections"); got != "1true" {
		t.Errorf("a cloud that is away is recorded as %s", got)
	}
	w.exec(t, "update connections set silent_since = silent_since - interval '4 minutes', not_before = null")
	w.exec(t, "update instances set seen_at = seen_at - interval '4 minutes'")
	now()
	tick(t, p)
	w.ends(t, kept.ID, "stopped unknown")
	away.Store(false)
	w.exec(t, "update connections set not_before = null")
	now()
	tick(t, p)
	w.ends(t, kept.ID, "unknown stopped")
	if got := w.text(t, "select failures::text || (silent_since is not null)::text from connections"); got != "0false" {
		t.Errorf("a cloud that is back is recorded as %s", got)
	}

	wants(t, w.done(t, p, w.ask(t, c, kept.ID, domain.ActionRequest{Action: domain.Start}, nil)), "")
	ticks(t, p, "the server that was started is seen",
		func() bool { return strings.HasSuffix(w.eventsOf(t, kept.ID), "updating active") })
	if _, err := (postgres.Connections{DB: w.db}).End(t.Context(), w.ID, c.ID, domain.ConnectionDeleted, "",
		true); err != nil {
		t.Fatal(err)
	}
	tick(t, p)
	w.ends(t, kept.ID, "active unknown")
}
