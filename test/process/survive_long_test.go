//go:build long

package process_test

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLongLaunchSurvivesKill sends orders of ten to two replicas at once, kills one of them at a random moment, and sends each
// again, to the other replica or to one that was started anew, until it is finished: Nova then has exactly its servers.
func TestLongLaunchSurvivesKill(t *testing.T) {
	testkit.Heavy(t)
	const kills, count, atOnce = 20, 10, 4
	launch := newSurvivors(t, count)
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	var all sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	var amid atomic.Int64
	for round := range kills {
		moment := time.Duration(100+random.IntN(8000)) * time.Millisecond
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			n := launch.killed(t, func(string) time.Duration { time.Sleep(moment); return moment }, round%2 == 0)
			if n > 0 && n < count {
				amid.Add(1)
			}
		})
	}
	all.Wait()
	t.Logf("seed %d: %d of %d kills came while an order was half done", seed, amid.Load(), kills)
	if amid.Load() == 0 {
		t.Error("no kill came in the middle of an order, so this proves nothing")
	}
}

// TestLongEveryTransitionArrives with fifty servers.
func TestLongEveryTransitionArrives(t *testing.T) {
	testkit.Heavy(t)
	everyTransitionArrives(t, 50, 3*time.Second)
}
