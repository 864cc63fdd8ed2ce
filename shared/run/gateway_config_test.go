package run

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/sethvargo/go-envconfig"
)

func TestGatewayConfig(t *testing.T) {
	t.Parallel()
	for upstream, ok := range map[string]bool{
		"http://{function}.cloudfn.svc.cluster.local": true, "https://{function}-cloudfn.example.com:8443": true,
		"http://{function}": true,
		"":                  false, "{function}": false, "http://functions": false, "http://{function}/": false,
		"http://x/{function}": false, "http://{function}?x": false,
		"http://{function}?": false, "http://{function}#": false, "http://u:canary@{function}": false,
		"ftp://{function}": false, "http://{function}:port": false,
		"http://x:1{function}": false, "{function}://x": false, "http://{function} ": false, "http://{name}": false,
		"http://canary\n{function}": false,
	} {
		_, err := load[gatewayConfig](t.Context(), envconfig.MapLookuper(map[string]string{
			"GATEWAY_UPSTREAM": upstream,
		}))
		if (err == nil) != ok {
			t.Errorf("%q: got %v", upstream, err)
		} else if err != nil && (!strings.HasPrefix(err.Error(), "GATEWAY_UPSTREAM must be ") ||
			strings.ContainsAny(err.Error(), "\n") || strings.Contains(err.Error(), "canary")) {
			t.Errorf("%q: it says %v", upstream, err)
		}
	}
	for name, value := range map[string]string{"REQUEST_TIMEOUT": "11m", "LOG_LEVEL": "LOUD"} {
		env := envconfig.MapLookuper(map[string]string{"GATEWAY_UPSTREAM": "http://{function}", name: value})
		if _, err := load[gatewayConfig](t.Context(), env); err == nil || !strings.HasPrefix(err.Error(), name) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// TestOwners are found in the routes, and two functions cannot have the same paths.
func TestOwners(t *testing.T) {
	t.Parallel()
	got, err := owners(tested) // things cannot be built without its defaults
	if diff := cmp.Diff(map[string]string{"/v1/things": "things"}, got); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	for want, list := range map[string][]function{
		"a and b both serve /v1/x": {
			listed("a", "GET /v1/x", "GET /v1/x/{id}"), listed("b", "POST /v1/x/{id}/y"),
		},
		`a serves "GET /{x}/y", which does not begin with a`:  {listed("a", "GET /{x}/y")},
		`a serves "GET /v1/{x}", which does not begin with a`: {listed("a", "GET /v1/{x}")},
		`a serves "GET /v1", which does not begin with a`:     {listed("a", "GET /v1")},
		"no function serves HTTP":                             {woken("collect-stats")},
	} {
		if _, err := owners(list); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// TestGatewayManyAtOnce has a thousand requests on their way together: each gets its own answer.
func TestGatewayManyAtOnce(t *testing.T) {
	const many = 1000
	var arrived sync.WaitGroup
	arrived.Add(many)
	g := newTestGateway(t, func(w http.ResponseWriter, r *http.Request) {
		arrived.Done()
		arrived.Wait()
		_, _ = io.Copy(w, r.Body)
	})
	var all sync.WaitGroup
	for i := range many {
		all.Go(func() {
			path := []string{"/v1/servers/1/actions", "/v1/launch"}[i%2]
			resp, err := http.Post(g.url+path, "text/plain", strings.NewReader(fmt.Sprint("number ", i)))
			if err != nil {
				t.Error(err)
				arrived.Done()
				return
			}
			defer resp.Body.Close()
			if text, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK ||
				string(text) != fmt.Sprint("number ", i) {
				t.Errorf("%d: got %d %s", i, resp.StatusCode, text)
			}
		})
	}
	all.Wait()
}
