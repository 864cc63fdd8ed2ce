package process_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLongDeploymentSurvivesKills: one of two replicas is killed at random moments, while a deployment is scaled up and
// down and servers are replaced. After each kill the others end with exactly what is declared.
func TestLongDeploymentSurvivesKills(t *testing.T) {
	t.Parallel()
	testkit.Heavy(t)
	d, s := newDeclarer(t, 2, map[string]string{"MANAGED_CLAIM": "3s"}), testkit.Sandbox(t)
	for n, count := range []int{5, 1, 4, 4} {
		spec := deployment(t, count, s.Flavor)
		if n == 3 {
			spec.Flavor, spec.Update = "m1.small", "replace"
		}
		d.declare(t, spec, nil)
		for range 2 {
			d.strike(t)
		}
		d.within(t, "after a kill", func() string { return d.isExactly(t, deployed, count, spec.Flavor) })
	}
	if made := testkit.Scalar[int](t, d.conn, `
select count(*)::int from (select from create_calls group by instance_id having count(*) > 1) doubled`); made > 0 {
		t.Logf("%d create calls were sent twice, as far as the dead process had not noted their answers", made)
	}
}

// strike kills a replica at a random moment of a round, and starts another one. A round without changes may end before.
func (d *declarer) strike(t *testing.T) {
	t.Helper()
	d.due(t)
	const claimedSQL = "select exists (select from managed_projects where claimed_until > clock_timestamp())"
	testkit.Eventually(t, 30*time.Second, "the claim of the last one ends", func() bool {
		return !testkit.Scalar[bool](t, d.conn, claimedSQL)
	})
	victim, done := d.replicas[0], make(chan struct{})
	go func() {
		defer close(done)
		_, _ = victim.TryTick(t, "reconcile-managed")
	}()
	time.Sleep(rand.N(4 * time.Second))
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if testkit.Scalar[bool](t, d.conn, claimedSQL) {
			time.Sleep(rand.N(500 * time.Millisecond))
			break
		}
	}
	victim.Kill()
	<-done
	t.Logf("killed in a round: %t", testkit.Scalar[bool](t, d.conn, claimedSQL))
	d.replicas[0] = testkit.Spawn(t, d.env)
}
