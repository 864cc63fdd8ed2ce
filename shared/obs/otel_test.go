package obs

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"
)

// receiver is a fake of an OpenTelemetry collector: it keeps what is posted to it, by path.
type receiver struct {
	mu    sync.Mutex
	got   map[string]string
	posts int
	fail  bool
}

// ServeHTTP implements http.Handler.
func (c *receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		unpacked, err := gzip.NewReader(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		body = unpacked
	}
	text, _ := io.ReadAll(body)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.posts++
	c.got[r.Method+" "+r.URL.Path] += string(text)
	if c.fail {
		w.WriteHeader(http.StatusBadRequest)
	}
}

// TestTelemetry is not parallel: OpenTelemetry and slog keep what is set up for the whole process.
func TestTelemetry(t *testing.T) {
	before := slog.Default()
	t.Cleanup(func() { slog.SetDefault(before) })
	for name, fail := range map[string]bool{"arrives when it ends": false, "a collector that fails": true} {
		t.Run(name, func(t *testing.T) {
			collector := &receiver{got: map[string]string{}, fail: fail}
			server := httptest.NewServer(collector)
			defer server.Close()
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.URL)
			var logs bytes.Buffer
			tel, err := Start(t.Context(), Config{Endpoint: server.URL}, "cloudfn-test", &logs, idOf)
			if err != nil {
				t.Fatal(err)
			}
			inner, passedOn := "", http.Header{}
			api := httptest.NewServer(tel.Server(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				inner = r.Header.Get("Traceparent")
				slog.InfoContext(r.Context(), "in a span")
				otel.GetTextMapPropagator().Inject(r.Context(), propagation.HeaderCarrier(passedOn))
			}), "the-span", func(r *http.Request) bool { return r.Header.Get("Key") == "" }))
			client := &http.Client{Transport: tel.Client()(http.DefaultTransport)}
			resp, err := client.Get(api.URL + "/v1/servers")
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			const strange = "0af7651916cd43dd8448eb211c80319c"
			stranger, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, api.URL, nil)
			stranger.Header = http.Header{
				"Key": {"wrong"}, "Traceparent": {"00-" + strange + "-b7ad6b7169203331-01"}, "Baggage": {"a=b"},
			}
			joined := inner
			if resp, err = http.DefaultClient.Do(stranger); err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			inner = joined
			if own := passedOn.Get("Traceparent"); own == "" || strings.Contains(own, strange) ||
				passedOn.Get("Baggage") != "" {
				t.Errorf("of a stranger's trace, %v is passed on", passedOn)
			}
			api.Close()
			Gauge("cloudfn.test.waiting", "How many rows wait.")(t.Context(), 7)
			if inner == "" || !strings.Contains(logs.String(), `"trace_id":"`+strings.Split(inner+"--", "-")[1]+`"`) {
				t.Errorf("the trace %q is not in the log: %s", inner, &logs)
			}
			if tel.Queries() == nil {
				t.Error("statements are not traced")
			}
			if err := tel.Stop(context.Background()); (err != nil) != fail {
				t.Errorf("Stop: %v", err)
			}
			collector.mu.Lock()
			defer collector.mu.Unlock()
			if collector.posts != 2 { // a failure is not retried, which would delay the end
				t.Errorf("it sent %d times", collector.posts)
			}
			if spans := collector.got["POST /v1/traces"]; !strings.Contains(spans, "/v1/servers") ||
				!strings.Contains(spans, "cloudfn-test") {
				t.Errorf("no spans arrived: %q", spans)
			}
			if numbers := collector.got["POST /v1/metrics"]; !strings.Contains(numbers,
				"http.server.request.duration") || !strings.Contains(numbers, "cloudfn.test.waiting") {
				t.Errorf("metrics are missing: %q", numbers)
			}
		})
	}
}

// TestNoTelemetry adds nothing to what it is given when there is no endpoint.
func TestNoTelemetry(t *testing.T) {
	before := slog.Default()
	t.Cleanup(func() { slog.SetDefault(before) })
	tel, err := Start(t.Context(), Config{}, "cloudfn-test", io.Discard, idOf)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	if tel.Server(mux, "x", nil) != http.Handler(mux) || tel.Client() != nil || tel.Queries() != nil {
		t.Error("something is traced")
	}
	if err := tel.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}

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
