package clock

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloudfn/cloudfn/shared/eventx"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestNothingDue: a tick is one statement, and wakes no function. What is due after the next tick is left to that.
func TestNothingDue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.add("run-leases", time.Hour)
		if err := w.handle(t, eventx.Ping("clock", "", time.Now())); err != nil || time.Since(w.began) != 0 {
			t.Errorf("got %v after %s", err, time.Since(w.began))
		}
		if w.reads != 1 || len(w.wakes) != 0 {
			t.Errorf("%d statements, woken were %v", w.reads, w.wakes)
		}
	})
}

// TestDueWakesItsFunction: what is due wakes its function, and no other, now or when it is due before the next tick.
func TestDueWakesItsFunction(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.add("run-leases", -time.Hour)
		w.add("watch-nodes", 32*s)
		w.add("deliver-events", 50*s)
		w.add("collect-stats", 70*s)
		w.run(t, 3)
		w.want(t, "run-leases", 0)
		w.want(t, "watch-nodes", 32*s)
		w.want(t, "deliver-events", 50*s)
		w.want(t, "collect-stats", 70*s)
		w.want(t, "poll-instances")
		if w.reads > 12 {
			t.Errorf("%d statements in three minutes", w.reads)
		}
	})
}

// TestLeftForLater: what a function leaves for later in the minute wakes it then, whether the clock has woken it, or
// another function has and it wakes the clock at its end. That wake is answered immediately.
func TestLeftForLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.add("deliver-events", 0)
		w.leaves["deliver-events"] = 20 * s
		w.tick(t)
		time.Sleep(30 * s)
		w.add("run-leases", 25*s)
		began := time.Now()
		if err := w.handle(t, eventx.Wake("clock", "", time.Now())); err != nil || time.Since(began) != 0 {
			t.Errorf("the wake took %s: %v", time.Since(began), err)
		}
		time.Sleep(30 * s)
		w.want(t, "deliver-events", 0, 20*s)
		w.want(t, "run-leases", 55*s)
	})
}

// TestTicks that are doubled, late and overlapping wake a function once for what is due. After an hour without any,
// the first one wakes all.
func TestTicks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.workFor = 20 * s // nothing is done before the second tick comes
		w.add("run-leases", 0)
		w.tick(t)
		w.add("run-leases", 0) // as long as the function works, it is still due
		w.mu.Lock()
		w.due["run-leases"][0] = w.began.Add(-s)
		w.mu.Unlock()
		w.tick(t)
		time.Sleep(5 * s)
		w.tick(t) // late
		w.want(t, "run-leases", 0)
		time.Sleep(time.Hour) // no tick
		w.mu.Lock()
		clear(w.wakes)
		w.mu.Unlock()
		for n := range 7 {
			w.add(fmt.Sprint("function ", n), -time.Duration(n)*10*time.Minute)
		}
		begin := time.Since(w.began)
		w.tick(t)
		for n := range 7 {
			w.want(t, fmt.Sprint("function ", n), begin)
		}
		time.Sleep(time.Minute)
	})
}

// TestLostTick: what a lost tick would have woken is woken by the next one.
func TestLostTick(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.run(t, 1)
		w.add("run-leases", 10*s)
		w.run(t, 3, 0)
		w.want(t, "run-leases", 120*s)
	})
}

// TestCannotBeWoken: a wake is repeated within the minute, and by the next ticks. A monitor says so after three
// minutes, and that the function can be woken again. The others are woken meanwhile.
func TestCannotBeWoken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.set("run-leases", errors.New("connection refused"))
		w.add("run-leases", 0)
		w.add("watch-nodes", 5*s)
		w.run(t, 1)
		w.want(t, "run-leases", 0, s, 4*s, 14*s, 34*s)
		w.want(t, "watch-nodes", 5*s)
		if len(w.failed) != 0 {
			t.Errorf("after a minute a monitor says %v", w.failed)
		}
		w.run(t, 3)
		if at := w.failed["run-leases"]; at < 3*time.Minute || at > 3*time.Minute+30*s {
			t.Errorf("the monitor failed at %s", at)
		}
		w.set("run-leases", nil)
		w.run(t, 1)
		if !slices.Equal(w.works, []string{"run-leases"}) || len(w.failing) != 0 {
			t.Errorf("again work %v; still failing are %v", w.works, w.failing)
		}
	})
}

// TestWorkFailed: a function that was woken and could not do its work can be woken. It is woken again 30 s after that,
// however long it took, and for what became due meanwhile, too.
func TestWorkFailed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.set("run-leases", fmt.Errorf("%w: 503", eventx.ErrNotDone))
		w.hold("run-leases", 40*s)
		w.add("run-leases", 0)
		w.add("run-leases", 35*s)
		w.run(t, 4)
		w.want(t, "run-leases", 0, 35*s, 70*s, 105*s, 140*s, 175*s, 210*s)
		if len(w.failing) != 0 {
			t.Errorf("failing are %v", w.failing)
		}
		time.Sleep(time.Minute)
	})
}

// TestHeld: a function that answers no wake, and does nothing of what was due then, cannot be woken: perhaps no pod of
// it starts. Four wakes wait for it at most. A monitor says so after three minutes, and later that it can be woken.
func TestHeld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.hold("run-leases", 5*time.Minute)
		w.add("run-leases", 0)
		w.add("watch-nodes", 90*s)
		w.run(t, 4)
		w.want(t, "run-leases", 0, 60*s, 90*s, 120*s)
		w.want(t, "watch-nodes", 90*s)
		if at := w.failed["run-leases"]; at < 3*time.Minute || at > 3*time.Minute+30*s {
			t.Errorf("the monitor failed at %s", at)
		}
		w.hold("run-leases", 0)
		w.run(t, 4)
		if !slices.Equal(w.works, []string{"run-leases"}) || len(w.failing) != 0 {
			t.Errorf("again work %v; still failing are %v", w.works, w.failing)
		}
		w.want(t, "run-leases", 0, 60*s, 90*s, 120*s)
	})
}

// TestBacklog: a function that is at work for minutes and has more due than it can do can be woken: it answers when it
// has enough. What comes meanwhile has it woken.
func TestBacklog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.backlog, w.workFor = true, 250*s
		w.add("run-leases", 0)
		w.add("run-leases", 70*s)
		w.run(t, 10)
		if len(w.failed) != 0 || len(w.failing) != 0 {
			t.Errorf("failed are %v, and failing %v", w.failed, w.failing)
		}
		if got := w.wakes["run-leases"]; !slices.Contains(got, 70*s) || len(got) < 18 || len(got) > 22 {
			t.Errorf("it was woken at %v", got)
		}
		w.mu.Lock()
		clear(w.due)
		w.mu.Unlock()
		time.Sleep(5 * time.Minute)
	})
}

// TestForgotten: a function that could not be woken, and that nothing waits for any more, is missed no longer,
// whichever process of the clock has recorded it.
func TestForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.add("run-leases", time.Hour)
		w.failing["run-leases"], w.failedAt["run-leases"] = time.Now(), time.Now()
		w.failed["run-leases"] = 0
		w.run(t, 4)
		w.want(t, "run-leases")
		if !slices.Equal(w.works, []string{"run-leases"}) || len(w.failing) != 0 {
			t.Errorf("again work %v; still failing are %v", w.works, w.failing)
		}
	})
}

// TestWorksBesideHeld: a function that works on one wake for minutes, and does what is due, is woken for what becomes
// due meanwhile, and no monitor fails. No more than four wakes are without an answer.
func TestWorksBesideHeld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.workFor = 4 * time.Minute
		for _, at := range []time.Duration{0, 70 * s, 130 * s, 190 * s, 200 * s} {
			w.add("run-leases", at)
		}
		w.run(t, 5)
		w.want(t, "run-leases", 0, 70*s, 130*s, 190*s, 240*s)
		if len(w.failing) != 0 || len(w.failed) != 0 {
			t.Errorf("failing are %v, and the monitors of %v", w.failing, w.failed)
		}
		time.Sleep(5 * time.Minute)
	})
}

// TestNotDeployed: a function that is not there, and for which nothing waits, is checked less and less often, and no
// monitor misses it. One that has something due is missed.
func TestNotDeployed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.unknown["watch-nodes"] = true
		for _, function := range []string{"watch-nodes", "run-leases"} {
			w.set(function, fmt.Errorf("%w: no such host", eventx.ErrAbsent))
			w.add(function, 0)
		}
		w.run(t, 60)
		if n := len(w.wakes["watch-nodes"]); n < 8 || n > 12 || len(w.wakes["run-leases"]) < 60 {
			t.Errorf("woken were the one that is not missed %d times, the other one %d times", n,
				len(w.wakes["run-leases"]))
		}
		if _, isReported := w.failed["run-leases"]; !isReported || len(w.failed) != 1 || len(w.failing) != 1 {
			t.Errorf("failed are %v", w.failed)
		}
		w.set("watch-nodes", nil) // it is deployed
		w.run(t, 11)
		if len(w.due["watch-nodes"]) != 0 {
			t.Errorf("after 11 minutes it was not woken: %v", w.wakes["watch-nodes"])
		}
	})
}

// TestDueSinceLongAgo: what has no time of its own, and is found right after its function was woken for something
// else, has it woken 30 s later. It hides nothing that is due in between.
func TestDueSinceLongAgo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.add("run-connections", 0)
		w.add("run-connections", 20*s)
		w.set("run-connections", nil)
		w.tick(t)
		w.add("run-connections", -24*time.Hour)
		time.Sleep(5 * s)
		if err := w.handle(t, eventx.Wake("clock", "", time.Now())); err != nil {
			t.Error(err)
		}
		time.Sleep(10 * s)
		w.want(t, "run-connections", 0)
		time.Sleep(10 * s)
		w.want(t, "run-connections", 0, 20*s) // and does both
		w.add("run-connections", -24*time.Hour)
		if err := w.handle(t, eventx.Wake("clock", "", time.Now())); err != nil {
			t.Error(err)
		}
		time.Sleep(34 * s)
		w.want(t, "run-connections", 0, 20*s, 50*s)
	})
}

// TestReadHangs: a read that does not end is ended, and done again: what is due is late by less than half a minute.
func TestReadHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.hanging = 4 * time.Minute
		w.add("run-leases", 0)
		if err := w.handle(t, eventx.Ping("clock", "", time.Now())); err == nil || time.Since(w.began) > 21*s {
			t.Errorf("after %s: %v", time.Since(w.began), err)
		}
		w.hanging = 0
		w.tick(t)
		w.want(t, "run-leases", 20*s)
	})
}

// TestEarlyTick: a tick may come some milliseconds before its minute. It stays for that.
func TestEarlyTick(t *testing.T) {
	t.Parallel()
	minute := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	for at, want := range map[time.Duration]time.Duration{
		-20 * time.Millisecond: time.Minute, 0: time.Minute, 200 * time.Millisecond: time.Minute, 45 * s: time.Minute,
		-6 * s: 0,
	} {
		if got := nextTick(minute.Add(at)).Sub(minute); got != want {
			t.Errorf("a tick at %s stays until %s, want %s", at, got, want)
		}
	}
}

// TestPostgresAway: a tick that cannot read fails, so that it is sent again. What is planned is read again soon.
func TestPostgresAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.add("run-leases", 20*s)
		w.tick(t)
		time.Sleep(10 * s)
		w.mu.Lock()
		w.broken = errors.New("postgres is unavailable")
		w.mu.Unlock()
		if err := w.handle(t, eventx.Ping("clock", "", time.Now())); !errors.Is(err, w.broken) {
			t.Errorf("got %v", err)
		}
		time.Sleep(12 * s)
		w.mu.Lock()
		w.broken = nil
		w.mu.Unlock()
		time.Sleep(30 * s)
		w.want(t, "run-leases", 25*s)
	})
}

// TestEndOfTheProcess ends the wait of a tick, and what is planned: the next process reads it again.
func TestEndOfTheProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.add("run-leases", 40*s)
		go func() {
			time.Sleep(10 * s)
			w.end()
		}()
		if err := w.handle(t, eventx.Ping("clock", "", time.Now())); err != nil || time.Since(w.began) != 10*s {
			t.Errorf("got %v after %s", err, time.Since(w.began))
		}
		time.Sleep(time.Minute)
		w.want(t, "run-leases")
		other := newWorld() // as the pod that comes after one that was killed
		other.due = w.due
		other.run(t, 1)
		other.want(t, "run-leases", 0)
	})
}

// TestEventsThatAreNotTicks get 4xx, so that no one sends them again.
func TestEventsThatAreNotTicks(t *testing.T) {
	t.Parallel()
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function)
	ce := func(more ...string) []string {
		return append([]string{"Ce-Specversion", "1.0", "Ce-Id", "1", "Ce-Source", "/x"}, more...)
	}
	for name, tc := range map[string]struct {
		header []string
		want   int
	}{
		"no event":     {nil, 400},
		"a wrong key":  {ce("Ce-Type", "dev.knative.sources.ping", "Ce-Cloudfnkey", "guess"), 403},
		"another type": {ce("Ce-Type", "com.example.other", "Ce-Cloudfnkey", testkit.EventKey), 415},
	} {
		if a := app.Do(t, "POST", "/events/clock", "", tc.header...); a.Status != tc.want {
			t.Errorf("%s: got %d %s, want %d", name, a.Status, a.Body, tc.want)
		}
	}
}
