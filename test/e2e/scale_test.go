//go:build e2e

package e2e

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// coldRounds is how often each Service is woken from zero: half a minute for each round.
var coldRounds = flag.Int("cold-rounds", 1, "how often TestColdStart wakes each Service; 10 give figures that are worth keeping")

// TestColdStart wakes functions and the cluster's bare hello-world from zero, and prints how long the first request took,
// and how long the same request takes then: what OpenStack and Postgres need for it. A slow machine is no failure, so
// nothing is asserted about time.
func TestColdStart(t *testing.T) {
	kn(t, "service", "apply", "hello", "--image", helloImage, "--scale", "..8", "--user", "65532", "--security-context", "strict", "--request", "cpu=5m,memory=32Mi", "--limit", "memory=256Mi")
	t.Cleanup(func() { kn(t, "service", "delete", "hello", "--wait") })
	token := testkit.NewProject(t).Token(t)
	calls := []struct{ service, path string }{{"hello", "/"}, {"servers", "/v1/servers?limit=1"}, {"stats", "/v1/stats"}}
	clients := map[string]*testkit.Client{}
	times, warm := map[string][]time.Duration{}, map[string][]time.Duration{}
	for _, c := range calls {
		clients[c.service] = client(t, c.service, token)
	}
	for round := range *coldRounds {
		toZero(t, "hello", "servers", "stats")
		for i := range calls { // each is first in turn
			c := calls[(i+round)%len(calls)]
			times[c.service] = append(times[c.service], timed(t, clients[c.service], c.path))
			time.Sleep(2 * time.Second) // what starting a pod entails goes on for a while
			warm[c.service] = append(warm[c.service], timed(t, clients[c.service], c.path))
			time.Sleep(time.Second)
		}
	}
	hello := median(times["hello"])
	fmt.Printf("\ncold start, median of %d            from zero   beside hello-world   the same when warm\n", *coldRounds)
	for _, c := range calls {
		m := median(times[c.service])
		fmt.Printf("  %-10s GET %-20s %7d ms   %.2fx %23d ms\n", c.service, c.path, m.Milliseconds(), float64(m)/float64(hello), median(warm[c.service]).Milliseconds())
	}
	fmt.Println("  (the target is 1.15x at most)")
}

// timed is how long a request takes. Its answer is not held against the OpenAPI file: hello is not in it, and a clock
// is running.
func timed(t testing.TB, c *testkit.Client, path string) time.Duration {
	t.Helper()
	began := time.Now()
	status, err := c.Status(path)
	if err != nil || status != http.StatusOK {
		t.Errorf("GET %s%s: %d %v", c.URL, path, status, err)
	}
	return time.Since(began)
}

func median(times []time.Duration) time.Duration {
	slices.Sort(times)
	return times[len(times)/2]
}

// load sends requests from that many clients at once until stop is closed or each has sent its share (0 = no end). It
// gives the request ids that were answered with 200, and every other answer.
func load(t testing.TB, c *testkit.Client, path string, clients, each int, stop <-chan struct{}) (ids []string, failed []string) {
	t.Helper()
	var mu sync.Mutex
	var group sync.WaitGroup
	for range clients {
		group.Go(func() {
			for n := 0; each == 0 || n < each; n++ {
				select {
				case <-stop:
					return
				default:
				}
				answer, err := c.Try(t, http.MethodGet, path, "")
				mu.Lock()
				switch {
				case err != nil:
					failed = append(failed, err.Error())
				case answer.Status != http.StatusOK:
					failed = append(failed, fmt.Sprintf("%d %s", answer.Status, answer.Body))
				default:
					ids = append(ids, answer.Header.Get("X-Request-Id"))
				}
				mu.Unlock()
			}
		})
	}
	group.Wait()
	return ids, failed
}

// inLog checks that the request log has exactly one row for each of the ids.
func inLog(t testing.TB, ids []string) {
	t.Helper()
	conn := testkit.Connect(t, databaseURL)
	rows := testkit.Scalar[int](t, conn, "select count(*) from requests where request_id = any($1)", ids)
	distinct := testkit.Scalar[int](t, conn, "select count(distinct request_id) from requests where request_id = any($1)", ids)
	if rows != len(ids) || distinct != len(ids) {
		t.Errorf("%d requests were answered, the log has %d rows for %d of them", len(ids), rows, distinct)
	}
}

func noneFailed(t testing.TB, failed []string) {
	t.Helper()
	if len(failed) > 0 {
		t.Errorf("%d answers failed, such as %s", len(failed), failed[0])
	}
}

// TestScaleUp sends 200 requests at once, all the time, and deletes pods meanwhile: several pods answer, no answer
// fails, and the request log has every one.
func TestScaleUp(t *testing.T) {
	project := testkit.NewProject(t)
	c := client(t, "servers", project.Token(t))
	toZero(t, "servers")
	done := make(chan struct{})
	peak, deleted := 0, 0
	var watch sync.WaitGroup
	watch.Go(func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(3 * time.Second):
			}
			peak = max(peak, ready("servers"))
			list, _ := pods("servers")
			if len(list) < 2 || deleted == 4 {
				continue
			}
			victim := list[rand.IntN(len(list))].Metadata.Name
			if _, err := try("kubectl", "-n", namespace, "delete", "pod", victim, "--wait=false"); err == nil {
				deleted++
			}
		}
	})
	began := time.Now()
	ids, failed := load(t, c, "/v1/servers?limit=1", 200, 6, nil)
	took := time.Since(began)
	close(done)
	watch.Wait()
	noneFailed(t, failed)
	inLog(t, ids)
	fmt.Printf("\n200 clients at once: %d answers in %s, %d failed, %d pods at the most, %d deleted meanwhile\n", len(ids)+len(failed), took.Round(time.Second), len(failed), peak, deleted)
	if peak < 2 || deleted == 0 {
		t.Errorf("there were %d pods at the most, %d were deleted: this shows nothing", peak, deleted)
	}
}
