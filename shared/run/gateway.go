package run

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/sethvargo/go-envconfig"

	"github.com/cloudfn/cloudfn/shared/httpx"
	"github.com/cloudfn/cloudfn/shared/obs"
)

// gatewayConfig is what the gateway reads from its environment. It needs no database, no cloud and no secret.
type gatewayConfig struct {
	Listen
	// URL of each function, such as `http://{function}.cloudfn.svc.cluster.local`.
	Upstream Upstream `env:"GATEWAY_UPSTREAM"`
	Logs     obs.Config
}

// Validate fails on a configuration that cannot work.
func (c gatewayConfig) Validate() error {
	if err := c.Upstream.Validate("GATEWAY_UPSTREAM"); err != nil {
		return err
	}
	return c.Listen.Validate()
}

// coldStart is the extra time of a request: Knative may have to start a pod first.
const coldStart = 15 * time.Second

// gateway is one base URL for functions that run one by one. It forwards each request to the function of its path.
type gateway struct {
	directory
	cfg       gatewayConfig
	transport *http.Transport
	telemetry *obs.Telemetry
}

func newGateway(ctx context.Context, env envconfig.Lookuper, functions []function, logs io.Writer) (*gateway, error) {
	cfg, err := load[gatewayConfig](ctx, env)
	if err != nil {
		return nil, err
	}
	g := &gateway{cfg: cfg, transport: toFunctions()}
	if g.directory, err = newDirectory(functions, cfg.Upstream); err != nil {
		return nil, err
	}
	if g.telemetry, err = obs.Start(ctx, cfg.Logs, serviceName("gateway"), logs, httpx.RequestID); err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	return g, nil
}

// handler serves GET /healthz, and forwards everything else.
func (g *gateway) handler() http.Handler {
	var client http.RoundTripper = g.transport
	if wrap := g.telemetry.Client(); wrap != nil {
		client = wrap(client)
	}
	pass := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { g.pass(w, r, client) })
	isTrusted := func(*http.Request) bool { return false } // the gateway continues no client's trace
	return g.telemetry.Server(httpx.Healthz(pass), serviceName("gateway"), isTrusted)
}

// limit is how long a request may take.
func (g *gateway) limit() time.Duration { return g.cfg.RequestTimeout + coldStart }

// runGateway serves until a signal ends it.
func runGateway(ctx context.Context, functions []function) error {
	g, err := newGateway(ctx, envconfig.OsLookuper(), functions, os.Stderr)
	if err != nil {
		return err
	}
	return untilSignal(ctx, g.serve, g.close)
}

func (g *gateway) serve(ctx context.Context) error {
	listener, err := g.cfg.listen(ctx, "")
	if err != nil {
		return err
	}
	slog.Info("serving as the gateway", "address", listener.Addr().String(), "functions",
		slices.Sorted(maps.Keys(g.services)))
	// The read deadline is after the request's own, even with a slow header: net/http cancels a request when its
	// connection cannot be read, as if the client were gone.
	longest := g.limit() + 2*readHeaderTimeout
	return serveHTTP(ctx, listener, g.handler(), longest, func(ctx context.Context, server *http.Server) error {
		return drain(ctx, server, longest+drainSlack)
	})
}

func (g *gateway) close(ctx context.Context) {
	g.transport.CloseIdleConnections()
	if err := g.telemetry.Stop(ctx); err != nil {
		slog.WarnContext(ctx, "telemetry", "error", err)
	}
}
