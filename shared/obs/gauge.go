package obs

import (
	"context"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
)

// Gauge is a metric of one whole number, such as how many rows wait. Its value goes nowhere without an endpoint.
func Gauge(name, description string) func(context.Context, int64) {
	gauge, err := otel.Meter("github.com/cloudfn/cloudfn").Int64Gauge(name, metric.WithDescription(description))
	if err != nil { // the name is malformed
		otel.Handle(err)
		return func(context.Context, int64) {}
	}
	return func(ctx context.Context, n int64) { gauge.Record(ctx, n) }
}
