package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/sethvargo/go-envconfig"

	"github.com/cloudfn/cloudfn/shared/httpx"
	"github.com/cloudfn/cloudfn/shared/obs"
)

// gatewayConfig is what the gateway reads from its environment. It needs no database, no cloud and no secret.
type gatewayConfig struct {
	Listen
	// Upstream is where every function is, with placeholder for its name.
	Upstream string `env:"GATEWAY_UPSTREAM"`
	Logs     obs.Config
}

const placeholder = "{function}"

// Validate refuses a configuration that cannot work.
func (c gatewayConfig) Validate() error {
	if _, err := c.upstream("function"); err != nil {
		return err
	}
	return c.Listen.Validate()
}

// upstream is the address of one function. Whatever is more than a scheme and a host would be lost, so it is refused.
func (c gatewayConfig) upstream(function string) (*url.URL, error) {
	text := strings.ReplaceAll(c.Upstream, placeholder, function)
	u, err := url.Parse(text)
	if err != nil || text == c.Upstream || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || text != u.Scheme+"://"+u.Host {
		return nil, errors.New("GATEWAY_UPSTREAM must be http or https and a host with " + placeholder + " in it, and nothing else, such as http://" +
			placeholder + ".cloudfn.svc.cluster.local")
	}
	return u, nil
}

// coldStart is what a request may take besides the function's own time: Knative may have to start a copy first.
const coldStart = 15 * time.Second

// gateway is one base URL for functions that run one by one: it passes each request on to the service of the
// function whose path it is.
type gateway struct {
	cfg       gatewayConfig
	owners    map[string]string   // the function, by how its paths begin: /v1/servers
	services  map[string]*url.URL // by function
	fallback  string              // the function that answers at every other path, with 404, and has it in the request log
	transport *http.Transport
	telemetry *obs.Telemetry
}

func newGateway(ctx context.Context, env envconfig.Lookuper, functions []function, logs io.Writer) (*gateway, error) {
	cfg, err := load[gatewayConfig](ctx, env)
	if err != nil {
		return nil, err
	}
	g := &gateway{cfg: cfg, services: map[string]*url.URL{}}
	if g.owners, err = owners(ctx, functions); err != nil {
		return nil, err
	}
	for _, function := range g.owners {
		if g.services[function], err = cfg.upstream(function); err != nil {
			return nil, err
		}
	}
	// Any would do, but launch takes few requests at a time: the last name is a rule that does not depend on an order of
	// registration, and gives a function (stats) that only reads.
	g.fallback = slices.Max(slices.Collect(maps.Keys(g.services)))
	g.transport = &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		TLSHandshakeTimeout: 5 * time.Second,
		MaxIdleConnsPerHost: 500,             // as many as requests that a copy takes at once (knative/services)
		IdleConnTimeout:     idleTimeout / 2, // sooner than the other side, so that no request meets its end
		// A client that asks first whether its body is wanted gets the function's word.
		ExpectContinueTimeout: time.Second,
		DisableCompression:    true, // what the client did not ask for would be undone here
	}
	if g.telemetry, err = obs.Start(ctx, cfg.Logs, serviceName("gateway"), logs, httpx.RequestID); err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	return g, nil
}

// routePrefix is the part of a route's pattern that tells whose path it is: two segments without a wildcard.
var routePrefix = regexp.MustCompile(`^[A-Z]+ (/[^/{]+/[^/{]+)(?:/|$)`)

// owners finds in the functions' own routes how the paths of each begin.
func owners(ctx context.Context, functions []function) (map[string]string, error) {
	found := map[string]string{}
	for _, f := range functions {
		if f.routes == nil {
			continue // woken by events, and by nobody else
		}
		routes, err := f.routes(ctx)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.name, err)
		}
		for _, route := range routes {
			match := routePrefix.FindStringSubmatch(route.Pattern)
			if match == nil {
				return nil, fmt.Errorf("%s serves %q, which does not begin with two names", f.name, route.Pattern)
			}
			if other, taken := found[match[1]]; taken && other != f.name {
				return nil, fmt.Errorf("%s and %s both serve %s", other, f.name, match[1])
			}
			found[match[1]] = f.name
		}
	}
	if len(found) == 0 {
		return nil, errors.New("there is no HTTP function")
	}
	return found, nil
}

// function finds whose path it is. Each segment counts as http.ServeMux reads it in the function: an encoded
// slash is part of a name, and a path that is not clean is nobody's.
func (g *gateway) function(u *url.URL) string {
	if parts := strings.SplitN(u.EscapedPath(), "/", 4); len(parts) > 2 {
		path, err := url.PathUnescape("/" + parts[1] + "/" + parts[2])
		if owner, ok := g.owners[path]; ok && err == nil {
			return owner
		}
	}
	return g.fallback
}

// handler serves GET /healthz, and passes everything else on.
func (g *gateway) handler() http.Handler {
	var client http.RoundTripper = g.transport
	if wrap := g.telemetry.Client(); wrap != nil {
		client = wrap(client)
	}
	pass := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { g.pass(w, r, client) })
	return g.telemetry.Server(httpx.Healthz(pass), serviceName("gateway"))
}

// limit is how long a request may take.
func (g *gateway) limit() time.Duration { return g.cfg.RequestTimeout + coldStart }

// runGateway is the command: it serves until it is asked to end.
func runGateway(ctx context.Context) error {
	g, err := newGateway(ctx, envconfig.OsLookuper(), registry, os.Stderr)
	if err != nil {
		return err
	}
	return untilAsked(ctx, g.serve, g.close)
}

func (g *gateway) serve(ctx context.Context) error {
	listener, err := g.cfg.listen(ctx, "")
	if err != nil {
		return err
	}
	slog.Info("serving as the gateway", "address", listener.Addr().String(), "functions", slices.Sorted(maps.Keys(g.services)))
	// Later than a request's own deadline, also when its header was slow: net/http cancels a request whose connection
	// cannot be read any more, which would look as if the client were gone.
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
