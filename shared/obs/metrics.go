package obs

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// GaugeOf describes a gauge of a Snapshot.
type GaugeOf struct{ Name, Description string }

// Value is one value of a gauge, with the attributes that tell it from the others.
type Value struct {
	Gauge string // its name
	N     int64
	By    map[string]string
}

// Snapshot are gauges whose values are measured together, at a tick. Each set of values is pushed once: what is not
// measured any more, or is measured by another replica since, vanishes.
type Snapshot struct {
	mu     sync.Mutex
	values []Value
}

// pushTime bounds a push.
const pushTime = 5 * time.Second

// NewSnapshot declares gauges. Their values go nowhere without an endpoint.
func NewSnapshot(gauges []GaugeOf) *Snapshot {
	s, meter := &Snapshot{}, otel.Meter("github.com/cloudfn/cloudfn")
	for _, g := range gauges {
		_, err := meter.Int64ObservableGauge(g.Name, metric.WithDescription(g.Description),
			metric.WithInt64Callback(func(_ context.Context, into metric.Int64Observer) error {
				s.observe(g.Name, into)
				return nil
			}))
		if err != nil { // the name is malformed
			otel.Handle(err)
		}
	}
	return s
}

// observe gives the collector the values of one gauge.
func (s *Snapshot) observe(gauge string, into metric.Int64Observer) {
	s.mu.Lock()
	values := slices.Clone(s.values)
	s.mu.Unlock()
	for _, v := range values {
		if v.Gauge != gauge {
			continue
		}
		by := make([]attribute.KeyValue, 0, len(v.By))
		for key, value := range v.By {
			by = append(by, attribute.String(key, value))
		}
		into.Observe(v.N, metric.WithAttributes(by...))
	}
}

// Push sends the values, with all other metrics of the process, and forgets them. It returns when they have arrived,
// because a process that scales to zero may end after its tick. What cannot be sent is logged. One push at a time.
func (s *Snapshot) Push(ctx context.Context, values []Value) {
	provider, isOn := otel.GetMeterProvider().(interface {
		ForceFlush(ctx context.Context) error
	})
	if !isOn { // no endpoint
		return
	}
	s.set(values)
	defer s.set(nil)
	ctx, cancel := context.WithTimeout(ctx, pushTime)
	defer cancel()
	if err := provider.ForceFlush(ctx); err != nil {
		slog.WarnContext(ctx, "metrics were not sent", "error", err)
	}
}

func (s *Snapshot) set(values []Value) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values = values
}

// Gauge is a metric of one whole number, such as how many rows wait. Its value goes nowhere without an endpoint.
func Gauge(name, description string) func(context.Context, int64) {
	gauge, err := otel.Meter("github.com/cloudfn/cloudfn").Int64Gauge(name, metric.WithDescription(description))
	if err != nil { // the name is malformed
		otel.Handle(err)
		return func(context.Context, int64) {}
	}
	return func(ctx context.Context, n int64) { gauge.Record(ctx, n) }
}
