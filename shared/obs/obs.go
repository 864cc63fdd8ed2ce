// Package obs makes what a process does visible: JSON logs always, traces and metrics by OTLP when
// OTEL_EXPORTER_OTLP_ENDPOINT is set. They are pushed, because a pod that scales to zero cannot be scraped.
package obs

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/exaring/otelpgx"
	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// Config is what the operator decides about logs and telemetry.
type Config struct {
	// DEBUG, INFO, WARN or ERROR; logs are JSON on stderr.
	LogLevel slog.Level `env:"LOG_LEVEL, default=INFO"`
	// OTLP endpoint for traces and metrics; when empty, none are collected.
	Endpoint string `env:"OTEL_EXPORTER_OTLP_ENDPOINT"` // the exporters read the other OTEL_* variables themselves
	// Knative's name of the revision, for the logs.
	Revision string `env:"K_REVISION"` // Knative's name of the running revision
}

// Telemetry is what was started; its methods do nothing when no endpoint is set.
type Telemetry struct {
	on       bool
	shutdown []func(context.Context) error
}

// Start sets up the default logger and, with an endpoint, traces and metrics. requestID finds the id of the
// request in hand; service is the service's name in traces, unless OTEL_SERVICE_NAME says another.
func Start(
	ctx context.Context, cfg Config, service string, out io.Writer, requestID func(context.Context) string,
) (*Telemetry, error) {
	slog.SetDefault(slog.New(newHandler(cfg, out, requestID)))
	if cfg.Endpoint == "" {
		return &Telemetry{}, nil
	}
	res, err := resource.New(ctx, resource.WithAttributes(attribute.String("service.name", service)),
		resource.WithFromEnv(), resource.WithTelemetrySDK(), resource.WithHost())
	if err != nil && !errors.Is(err, resource.ErrPartialResource) {
		return nil, err
	}
	spans, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, err
	}
	numbers, err := otlpmetrichttp.New(ctx)
	if err != nil {
		return nil, err
	}
	traces := sdktrace.NewTracerProvider(sdktrace.WithBatcher(spans), sdktrace.WithResource(res))
	metrics := metric.NewMeterProvider(metric.WithReader(metric.NewPeriodicReader(numbers)), metric.WithResource(res))
	otel.SetTracerProvider(traces)
	otel.SetMeterProvider(metrics)
	otel.SetTextMapPropagator(propagation.NewCompositeTextMapPropagator(propagation.TraceContext{},
		propagation.Baggage{}))
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { slog.Warn("telemetry", "error", err) }))
	return &Telemetry{on: true, shutdown: []func(context.Context) error{traces.Shutdown, metrics.Shutdown}}, nil
}

// Stop sends what is left.
func (t *Telemetry) Stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var errs []error
	for _, stop := range t.shutdown {
		errs = append(errs, stop(ctx))
	}
	return errors.Join(errs...)
}

// Server traces and measures the requests that come in. Only those that are trusted continue the trace of their sender:
// strangers could join others' traces, or have their baggage sent on.
func (t *Telemetry) Server(h http.Handler, name string, isTrusted func(*http.Request) bool) http.Handler {
	if !t.on {
		return h
	}
	traced := otelhttp.NewHandler(h, name)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isTrusted(r) {
			r = r.Clone(r.Context())
			for _, field := range otel.GetTextMapPropagator().Fields() {
				r.Header.Del(field)
			}
		}
		traced.ServeHTTP(w, r)
	})
}

// Client traces and measures the requests that go out; nil when there is nothing to add.
func (t *Telemetry) Client() func(http.RoundTripper) http.RoundTripper {
	if !t.on {
		return nil
	}
	return func(rt http.RoundTripper) http.RoundTripper { return otelhttp.NewTransport(rt) }
}

// Queries traces the statements that go to Postgres, without their values.
func (t *Telemetry) Queries() pgx.QueryTracer {
	if !t.on {
		return nil
	}
	return otelpgx.NewTracer()
}

// secretKeys are attributes that no log line may carry in clear, no matter who put them there.
var secretKeys = []string{"token", "password", "secret", "authorization", "signature", "user_data"}

func redact(groups []string, a slog.Attr) slog.Attr {
	if isSecret(a.Key) || slices.ContainsFunc(groups, isSecret) {
		return slog.String(a.Key, "[redacted]")
	}
	return a
}

func isSecret(key string) bool {
	key = strings.ToLower(strings.ReplaceAll(key, "-", "_"))
	return slices.ContainsFunc(secretKeys, func(s string) bool { return strings.Contains(key, s) })
}

// handler adds to each line what its context knows.
type handler struct {
	slog.Handler
	requestID func(context.Context) string
}

func newHandler(cfg Config, out io.Writer, requestID func(context.Context) string) slog.Handler {
	var h slog.Handler = slog.NewJSONHandler(out, &slog.HandlerOptions{Level: cfg.LogLevel, ReplaceAttr: redact})
	if cfg.Revision != "" {
		h = h.WithAttrs([]slog.Attr{slog.String("revision", cfg.Revision)})
	}
	return handler{h, requestID}
}

// Handle implements slog.Handler.
func (h handler) Handle(ctx context.Context, line slog.Record) error {
	if id := h.requestID(ctx); id != "" {
		line.AddAttrs(slog.String("request_id", id))
	}
	if span := trace.SpanContextFromContext(ctx); span.HasTraceID() {
		line.AddAttrs(slog.String("trace_id", span.TraceID().String()))
	}
	return h.Handler.Handle(ctx, line)
}

// WithAttrs implements slog.Handler.
func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return handler{h.Handler.WithAttrs(attrs), h.requestID}
}

// WithGroup implements slog.Handler.
func (h handler) WithGroup(name string) slog.Handler {
	return handler{h.Handler.WithGroup(name), h.requestID}
}
