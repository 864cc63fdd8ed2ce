//go:build e2e && long

package e2e

import (
	"flag"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// coldRounds is how often each Service is woken from zero: half a minute for each round.
var coldRounds = flag.Int("cold-rounds", 1,
	"how often TestLongColdStart wakes each Service; 10 give figures that are worth keeping")

// TestLongColdStart wakes functions and the cluster's bare hello-world from zero, and prints how long the first
// request took, and how long the same request takes then: what OpenStack and Postgres need for it. A slow machine is
// no failure, so nothing is asserted about time.
func TestLongColdStart(t *testing.T) {
	kn(t, "service", "apply", "hello", "--image", helloImage, "--scale", "..8", "--user", "65532",
		"--security-context", "strict", "--request", "cpu=5m,memory=32Mi", "--limit", "memory=256Mi")
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
	fmt.Printf("\ncold start, median of %d            from zero   beside hello-world   the same when warm\n",
		*coldRounds)
	for _, c := range calls {
		m := median(times[c.service])
		fmt.Printf("  %-10s GET %-20s %7d ms   %.2fx %23d ms\n", c.service, c.path, m.Milliseconds(),
			float64(m)/float64(hello), median(warm[c.service]).Milliseconds())
	}
	fmt.Println("  (the target is 1.15x at most)")
}

// timed is how long a request takes. Its answer is not checked against the OpenAPI file: hello is not in it, and a
// clock is running.
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
