package process_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestNodeMetrics: the metrics of each node have arrived when the tick ends, because the process may end then.
func TestNodeMetrics(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var arrived strings.Builder
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		if r.URL.Path == "/v1/metrics" {
			arrived.Write(body)
		}
	}))
	defer collector.Close()
	watcher := testkit.Spawn(t, testkit.Env(t, testkit.Database(t), map[string]string{
		"FUNCTION_TARGET": "watch-nodes", "OTEL_EXPORTER_OTLP_ENDPOINT": collector.URL,
	}))
	if a := watcher.Tick(t, "watch-nodes"); a.Status != http.StatusNoContent {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	watcher.Kill()
	mu.Lock()
	defer mu.Unlock()
	for _, want := range []string{
		"cloudfn.node.state", "cloudfn.node.schedulable", "cloudfn.node.capacity", "cloudfn.node.used",
		"cloudfn.node.servers", "cloudfn.nodes.drains_running", "compute-1", "suspect", "ram_mb",
	} {
		if !strings.Contains(arrived.String(), want) {
			t.Errorf("%s has not arrived", want)
		}
	}
}
