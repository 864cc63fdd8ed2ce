package obs

import (
	"bytes"
	"context"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
)

// take returns the metrics that have arrived since the last call.
func (c *receiver) take() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	numbers := c.got["POST /v1/metrics"]
	clear(c.got)
	return numbers
}

// TestSnapshot is not parallel, as TestTelemetry. A push has arrived when it returns, and what it has is sent once: a
// node that was deleted, or that another replica measures since, is not reported with its last value forever.
func TestSnapshot(t *testing.T) {
	before := slog.Default()
	t.Cleanup(func() { slog.SetDefault(before) })
	collector := &receiver{got: map[string]string{}}
	server := httptest.NewServer(collector)
	defer server.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.URL)
	tel, err := Start(t.Context(), Config{Endpoint: server.URL}, "cloudfn-test", &bytes.Buffer{}, idOf)
	if err != nil {
		t.Fatal(err)
	}
	nodes := NewSnapshot([]GaugeOf{{"cloudfn.test.state", "Of a node."}, {"cloudfn.test.used", "By a node."}})
	of := func(gauge, node string) Value { return Value{Gauge: gauge, N: 1, By: map[string]string{"node": node}} }
	nodes.Push(t.Context(), []Value{
		of("cloudfn.test.state", "node-a"), of("cloudfn.test.state", "node-b"), of("cloudfn.test.used", "node-c"),
	})
	got := collector.take()
	for _, want := range []string{"cloudfn.test.state", "cloudfn.test.used", "node-a", "node-b", "node-c"} {
		if !strings.Contains(got, want) {
			t.Errorf("%s has not arrived: %q", want, got)
		}
	}
	nodes.Push(t.Context(), []Value{of("cloudfn.test.state", "node-b")})
	if got := collector.take(); !strings.Contains(got, "node-b") || strings.Contains(got, "node-a") ||
		strings.Contains(got, "cloudfn.test.used") {
		t.Errorf("after node-a was deleted: %q", got)
	}
	if err := tel.Stop(context.Background()); err != nil {
		t.Error(err)
	}
	if got := collector.take(); strings.Contains(got, "node-b") {
		t.Errorf("it was sent twice: %q", got)
	}
}
