//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// underLoad runs change while 20 clients call servers all the time, and fails the test when any answer failed.
func underLoad(t *testing.T, change func()) {
	t.Helper()
	c := client(t, "servers", testkit.NewProject(t).Token(t))
	stop := make(chan struct{})
	var ids, failed []string
	var running sync.WaitGroup
	running.Go(func() { ids, failed = load(t, c, "/v1/servers?limit=1", 20, 0, stop) })
	func() {
		defer running.Wait()
		defer close(stop)
		time.Sleep(3 * time.Second)
		change()
		time.Sleep(5 * time.Second)
	}()
	noneFailed(t, failed)
	inLog(t, ids)
	fmt.Printf("\n%s: %d answers, %d failed\n", t.Name(), len(ids)+len(failed), len(failed))
}

// latestReady is the revision of servers that was ready last.
func latestReady(t testing.TB) string {
	t.Helper()
	return kubectl(t, "get", "ksvc", "servers", "-o", "jsonpath={.status.latestReadyRevisionName}")
}

// share is what a revision gets of the traffic of servers, in percent.
func share(t testing.TB, revision string) (percent int) {
	t.Helper()
	list := get[struct {
		Status struct {
			Traffic []struct {
				RevisionName string
				Percent      int
			}
		}
	}](t, "ksvc", "servers")
	for _, target := range list.Status.Traffic {
		if target.RevisionName == revision {
			percent += target.Percent
		}
	}
	return percent
}

// TestRollout goes to a new revision all at once, in two halves, and back, and loses no request.
func TestRollout(t *testing.T) {
	old := latestReady(t)
	t.Cleanup(func() { kn(t, "service", "update", "servers", "--traffic", "@latest=100", "--env", "LOG_LEVEL-") })
	underLoad(t, func() {
		kn(t, "service", "update", "servers", "--env", "LOG_LEVEL=INFO")
		now := latestReady(t)
		if now == old || share(t, now) != 100 {
			t.Errorf("revision %s gets %d%%", now, share(t, now))
		}
		kn(t, "service", "update", "servers", "--traffic", old+"=50", "--traffic", "@latest=50")
		time.Sleep(10 * time.Second)
		if share(t, old) != 50 || share(t, now) != 50 {
			t.Errorf("the traffic is %d%% and %d%%", share(t, old), share(t, now))
		}
		for _, revision := range []string{old, now} {
			if n := len(get[podList](t, "pods", "-l", "serving.knative.dev/revision="+revision).Items); n == 0 {
				t.Errorf("revision %s has half of the traffic and no pod", revision)
			}
		}
		kn(t, "service", "update", "servers", "--traffic", old+"=100")
		if share(t, old) != 100 {
			t.Errorf("after the rollback %s gets %d%%", old, share(t, old))
		}
	})
}

// TestBrokenRevision: a mistake in the configuration makes a revision that does not start. It gets no traffic, and kn
// says why.
func TestBrokenRevision(t *testing.T) {
	good := latestReady(t)
	t.Cleanup(func() {
		kn(t, "service", "update", "servers", "--env", "REQUEST_TIMEOUT-")
		if latestReady(t) == good {
			t.Error("the mended revision is not ready")
		}
	})
	underLoad(t, func() {
		kn(t, "service", "update", "servers", "--env", "REQUEST_TIMEOUT=soon", "--no-wait")
		testkit.Eventually(t, 3*time.Minute, "kn service describe says what is wrong with the new revision",
			func() bool {
				out, _ := try("kn", "-n", namespace, "service", "describe", "servers", "--verbose")
				return strings.Contains(out, `Container failed with: cloudfn: REQUEST_TIMEOUT is "soon"`)
			})
		if share(t, good) != 100 || latestReady(t) != good {
			t.Errorf("revision %s gets %d%%, ready is %s", good, share(t, good), latestReady(t))
		}
	})
}

// TestDependenciesAway: a function starts, and says what is missing, while Postgres or Keystone cannot be reached.
func TestDependenciesAway(t *testing.T) {
	token := testkit.Token(t, "demo")
	for name, env := range map[string][]string{
		"postgres": {"DATABASE_URL", "postgres://nobody@" + host + ":9/none"},
		"keystone": {"OS_AUTH_URL", "http://" + host + ":9/v3"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()                                      // both mostly wait for Knative
			clone(t, "servers", "without-"+name, nil, env...) // waits until it is Ready
			c := client(t, "without-"+name, token)
			if answer := c.Get(t, "/v1/servers"); answer.Status != 503 || answer.Header.Get("Retry-After") == "" {
				t.Errorf("got %d %v %s", answer.Status, answer.Header, answer.Body)
			}
		})
	}
}
