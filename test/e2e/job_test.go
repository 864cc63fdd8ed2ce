//go:build e2e

package e2e

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestMainJob is what cloudfn is for, by someone with a token and nothing else: once with a host for every function,
// once with the gateway's single base URL.
func TestMainJob(t *testing.T) {
	for name, at := range map[string]func(function string) string{
		"a host per function": func(function string) string { return function },
		"one base URL":        func(string) string { return "gateway" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // each has a project of its own
			project := testkit.NewProject(t)
			token := project.Token(t)
			facts := testkit.Sandbox(t)
			call := func(function string) *testkit.Client { return client(t, at(function), token) }

			var resources struct{ Flavors, Images, Networks []struct{ Name string } }
			answer := call("resources").Get(t, "/v1/resources")
			if answer.JSON(t, &resources); answer.Status != 200 || len(resources.Flavors) == 0 ||
				len(resources.Images) == 0 ||
				len(resources.Networks) == 0 {
				t.Fatalf("resources: %d %s", answer.Status, answer.Body)
			}

			order, _ := json.Marshal(map[string]any{
				"name": "e2e", "count": 2, "flavor": facts.Flavor, "image": facts.Image,
				"networks": []string{facts.Network},
			})
			answer = call("launch").Post(t, "/v1/launch", string(order))
			if answer.Status != 202 {
				t.Fatalf("launch: %d %s", answer.Status, answer.Body)
			}
			location := answer.Header.Get("Location")
			testkit.Eventually(t, 2*time.Minute, "both servers are active", func() bool {
				var servers struct{ Servers []struct{ Status string } }
				call("servers").Get(t, "/v1/servers?status=ACTIVE").JSON(t, &servers)
				return len(servers.Servers) == 2
			})
			if answer := call("launch").Get(t, location); answer.Status != 200 ||
				!strings.Contains(string(answer.Body), `"status":"done"`) {
				t.Errorf("the order: %d %s", answer.Status, answer.Body)
			}

			var stats struct{ Hours []any }
			answer = call("stats").Get(t, "/v1/stats?hours=24")
			if answer.JSON(t, &stats); answer.Status != 200 || len(stats.Hours) != 24 {
				t.Errorf("stats: %d %s", answer.Status, answer.Body)
			}
			if answer := call("stats").Get(t, "/v1/stats", "Accept", "image/svg+xml"); answer.Status != 200 ||
				!strings.HasPrefix(answer.Header.Get("Content-Type"), "image/svg+xml") {
				t.Errorf("the chart: %d %v", answer.Status, answer.Header)
			}

			// The log has each of these, with its function, in whatever pod it was answered.
			var log struct {
				Requests []struct{ Function, Path string }
			}
			call("stats").Get(t, "/v1/requests?limit=1000").JSON(t, &log)
			logged := map[string]bool{}
			for _, r := range log.Requests {
				logged[r.Function] = true
			}
			for _, function := range []string{"resources", "launch", "servers", "stats"} {
				if !logged[function] {
					t.Errorf("the request log has nothing of %s: %v", function, log.Requests)
				}
			}
		})
	}
}

// TestEventFunctionsAreNotReachable from outside: neither by a host of their own, nor through the gateway.
func TestEventFunctionsAreNotReachable(t *testing.T) {
	url := kubectl(t, "get", "ksvc", "collect-stats", "-o", "jsonpath={.status.url}")
	if !strings.HasSuffix(url, ".svc.cluster.local") {
		t.Errorf("collect-stats is served at %s", url)
	}
	token := testkit.Token(t, "demo")
	c := client(t, "gateway", token)
	for _, path := range []string{"/events/collect-stats", "/", "/v1/collect-stats"} {
		if answer := c.Post(t, path, "{}"); answer.Status != 404 && answer.Status != 405 {
			t.Errorf("POST %s through the gateway: %d %s", path, answer.Status, answer.Body)
		}
	}
}
