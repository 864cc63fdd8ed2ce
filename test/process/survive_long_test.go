package process_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLongLaunchSurvivesKill sends orders of ten to two replicas at once, kills one of them at a random moment, and
// sends each again, to the other replica or to one that was started anew, until it is finished: Nova then has exactly
// its servers.
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

// TestLongRollbackSurvivesKill kills the replica that rolls an order back: another one finishes the order when it is
// read.
func TestLongRollbackSurvivesKill(t *testing.T) {
	testkit.Heavy(t)
	f := testkit.Sandbox(t)
	project := testkit.NewProject(t)
	database := testkit.Database(t)
	token := project.Token(t)
	env := testkit.Env(t, database, map[string]string{"FUNCTION_TARGET": "launch", "LAUNCH_CLAIM": "12s"})
	first, second := testkit.Spawn(t, env), testkit.Spawn(t, env)
	id := uuid.NewString()
	order := fmt.Sprintf(`{"id":%q,"name":"gone","flavor":%q,"image":%q,"networks":[%q],"on_failure":"rollback",
		"generate_key":true,"instances":[{},{},{},{},{},{"flavor":%q}]}`, id, f.FlavorID, f.ImageID, f.NetworkID, project.TooLargeFlavor(t))
	var all sync.WaitGroup
	all.Go(func() {
		_, err := first.As(token).Try(t, "POST", "/v1/launch", order, "Content-Type", "application/json")
		for err == nil { // the request's time was too short
			_, err = first.As(token).Try(t, "GET", "/v1/launch/"+id, "")
		}
	})
	conn := testkit.Connect(t, database)
	testkit.Eventually(t, 4*time.Minute, "one has failed", func() bool {
		return testkit.Scalar[bool](t, conn, "select exists (select from instances where state in ('error', 'deleting', 'deleted'))")
	})
	first.Kill()
	all.Wait()
	if got := testkit.Scalar[string](t, conn, "select status from orders"); got != "running" {
		t.Fatalf("the order is %s already: the kill came too late to prove anything", got)
	}
	var got placed
	testkit.Eventually(t, 3*time.Minute, "the order is rolled back", func() bool {
		second.As(token).Get(t, "/v1/launch/"+id).JSON(t, &got)
		return got.Status == "rolled_back"
	})
	if left, keys := project.Servers(t), project.KeyPairs(t); len(left) != 0 || len(keys) != 0 {
		t.Errorf("left are the servers %+v and the key pairs %v", left, keys)
	}
}
