package runconnections

import (
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLongEveryConnectionIsFollowed within one tick, of ten to four clouds, although the cloud of the four oldest takes
// requests and never answers. Meanwhile an action through one of the others is done, too.
func TestLongEveryConnectionIsFollowed(t *testing.T) {
	t.Parallel()
	w := fakes(t)
	hanging := newFakeCloud(t)
	end := hanging.hang(t)
	clouds := []*fakeCloud{hanging, newFakeCloud(t), newFakeCloud(t), newFakeCloud(t)}
	var stopped []uuid.UUID
	var last domain.Connection
	for n := range 10 {
		cloud := hanging
		if n >= 4 {
			cloud = clouds[1+n%3]
		}
		if last = w.remote(t, cloud); cloud == hanging {
			w.runs(t, cloud, last, "SHUTOFF", domain.InstanceActive)
			continue
		}
		instance, _ := w.runs(t, cloud, last, "SHUTOFF", domain.InstanceActive)
		stopped = append(stopped, instance)
	}
	p := w.function(t, nil)
	var tick sync.WaitGroup
	tick.Go(func() { _, _ = p.TryTick(t, "run-connections") })
	start := time.Now()
	for _, instance := range stopped {
		testkit.Eventually(t, 15*time.Second, "the server is seen to be stopped",
			func() bool { return w.eventsOf(t, instance) == "stopped" })
	}
	t.Logf("%d healthy connections were followed within %s", len(stopped), time.Since(start))
	// there is nothing to do
	stop := w.ask(t, last, stopped[len(stopped)-1], domain.ActionRequest{Action: domain.Stop}, nil)
	testkit.Eventually(t, 15*time.Second, "the action is done",
		func() bool { return w.action(t, stop).Status == domain.ActionDone })
	for n, cloud := range clouds[1:] {
		if lists, logins := cloud.count("/servers/detail"), cloud.count("/auth/tokens"); lists != 2 || logins != 2 {
			t.Errorf("cloud %d of 2 connections: %d lists and %d logins", n+1, lists, logins)
		}
	}
	end()
	tick.Wait()
	if got := w.text(t, `select count(*)::text from connections where silent_since is not null and failures = 1`); got != "4" {
		t.Errorf("%s connections of the cloud that hangs are recorded as silent", got)
	}
}

// TestLongMovingServerOfAnotherCloud: while Nova is at work on one of a thousand servers, only what changed is read.
func TestLongMovingServerOfAnotherCloud(t *testing.T) {
	t.Parallel()
	w := fakes(t)
	cloud := newFakeCloud(t)
	cloud.page = 500
	c := w.remote(t, cloud)
	for range 999 {
		cloud.servers = append(cloud.servers, fakeServer{c.ActsAs.ProjectID, uuid.NewString(), "ACTIVE"})
	}
	moving, server := w.runs(t, cloud, c, "BUILD", domain.InstanceBuilding)
	gone, deleted := w.runs(t, cloud, c, "ACTIVE", domain.InstanceActive)
	changes := 0
	cloud.changed = func() {
		if changes++; changes == 2 {
			cloud.set(deleted, "DELETED")
			cloud.set(server, "SHUTOFF")
		}
	}
	tick(t, w.function(t, nil))
	w.ends(t, moving, "stopped")
	w.ends(t, gone, "deleted")
	if all, changed := cloud.count("/servers/detail")-cloud.count("changes-since"),
		cloud.count("changes-since"); all != 1 || changed != 3 {
		t.Errorf("all servers were read %d times, and those that changed %d times", all, changed)
	}
}
