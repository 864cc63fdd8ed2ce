package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sethvargo/go-envconfig"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
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
	// connection cannot be read, as if the client had disconnected.
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

// uploadSlack is the time for the rest of a body after the deadline. http.Transport waits for the body regardless of
// the deadline, and a stalled client must not block it.
const uploadSlack = time.Second

// pass forwards a request to its function, and streams both bodies. The function limits the size of the body.
func (g *gateway) pass(w http.ResponseWriter, r *http.Request, client http.RoundTripper) {
	began, function := time.Now(), g.function(r.URL)
	ctx, cancel := context.WithTimeout(httpx.TakeRequestID(r), g.limit())
	defer cancel()
	r = r.WithContext(ctx) // a copy: net/http looks at the body of its own
	upload := httpx.ReadBy(w, r, began.Add(g.limit()+uploadSlack))
	r.Body = body{r.Body}
	r.Header.Del("Upgrade") // a tunnel has no time limit and cannot be drained

	row := domain.Request{Function: function, Method: r.Method, Path: httpx.Path(r)}
	fail := func(err error) error {
		err = httpx.LogFailure(ctx, function, classify(ctx, function, err))
		problem := httpx.NewProblem(err)
		row.Status, row.Code = problem.Status, string(problem.Code)
		return err
	}
	proxy := httputil.ReverseProxy{
		Transport: client,
		Rewrite:   func(p *httputil.ProxyRequest) { rewrite(p, g.services[function]) },
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			err = fail(err)
			if upload.End(w.Header()); ctx.Err() != nil {
				w.Header().Set("Connection", "close")
			}
			refusal := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { httpx.WriteError(w, r, err) })
			withCORS(refusal, g.cfg.CORSOrigins).ServeHTTP(w, r)
		},
		ErrorLog: log.New(io.Discard, "", 0), // an answer that breaks off has its line here
	}
	sent := &answer{}
	proxy.ModifyResponse = func(resp *http.Response) error {
		if err := foreign(resp, function, httpx.RequestID(ctx)); err != nil {
			return err
		}
		resp.Header.Set("X-Request-Id", httpx.RequestID(ctx))
		upload.End(resp.Header)
		row.Status, sent.ReadCloser, resp.Body = resp.StatusCode, resp.Body, sent
		return nil
	}
	whole := false
	defer func() {
		// the proxy panics, which ends the connection: the client must not take half an answer for a whole one
		if !whole {
			_ = fail(cmp.Or(sent.err, errors.New("the answer could not be sent")))
		}
		row.Duration = time.Since(began)
		httpx.LogRequest(ctx, row)
		if whole {
			upload.Linger()
		}
	}()
	proxy.ServeHTTP(w, r)
	whole = true
}

// rewrite addresses a request to a function's service. Path and query stay as they are, even malformed, but bytes that
// no URL may have are percent-encoded.
func rewrite(p *httputil.ProxyRequest, service *url.URL) {
	in := p.In.URL
	p.Out.URL = &url.URL{
		Scheme: service.Scheme, Host: service.Host, Path: in.Path, RawPath: in.RawPath, RawQuery: in.RawQuery,
		ForceQuery: in.ForceQuery,
	}
	p.Out.Host = service.Host // Knative routes by it
	p.Out.Header.Set("X-Request-Id", httpx.RequestID(p.In.Context()))
	httpx.SendOnce(p.Out.Header)
	// The headers of an ingress stay, with the peer added. They are untrusted values.
	p.Out.Header["X-Forwarded-For"] = p.In.Header["X-Forwarded-For"]
	p.SetXForwarded()
	for _, name := range []string{"X-Forwarded-Host", "X-Forwarded-Proto"} {
		if given, ok := p.In.Header[name]; ok {
			p.Out.Header[name] = given
		}
	}
	forwarded(p)
}

// forwarded repeats host and proto in the header Forwarded (RFC 7239): an ingress inside the cluster may overwrite
// X-Forwarded-Host and -Proto.
func forwarded(p *httputil.ProxyRequest) {
	host, _, _ := strings.Cut(p.Out.Header.Get("X-Forwarded-Host"), ",")
	proto, _, _ := strings.Cut(p.Out.Header.Get("X-Forwarded-Proto"), ",")
	p.Out.Header.Set("Forwarded",
		"host="+strconv.Quote(strings.TrimSpace(host))+";proto="+strconv.Quote(strings.TrimSpace(proto)))
}

// body is the client's body. Its errors are the client's, not the function's.
type body struct{ io.ReadCloser }

// Read implements io.Reader.
func (b body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	_, network := errors.AsType[*net.OpError](err)
	switch {
	case err == nil || errors.Is(err, io.EOF):
		return n, err
	case errors.Is(err, os.ErrDeadlineExceeded):
		return n, apperr.Wrap(apperr.Timeout, err, "the body did not come in time")
	case network || errors.Is(err, io.ErrUnexpectedEOF):
		return n, apperr.Wrap(apperr.ClientGone, err, "the client hung up")
	}
	return n, apperr.Wrap(apperr.Invalid, err, "the body could not be read")
}

// answer is a function's body. It records why it broke off.
type answer struct {
	io.ReadCloser
	err error
}

// Read implements io.Reader.
func (a *answer) Read(p []byte) (int, error) {
	n, err := a.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		a.err = err
	}
	return n, err
}

// Upstream is the URL of every function, with placeholder for its name, such as
// http://{function}.cloudfn.svc.cluster.local.
type Upstream string

const placeholder = "{function}"

// Validate fails on an Upstream that cannot work. variable is its environment variable.
func (u Upstream) Validate(variable string) error {
	if _, err := u.at("function"); err != nil {
		return errors.New(variable + " must be " + err.Error())
	}
	return nil
}

// at returns the URL of one function. It must have a scheme and a host only.
func (u Upstream) at(function string) (*url.URL, error) {
	text := strings.ReplaceAll(string(u), placeholder, function)
	address, err := url.Parse(text)
	if err != nil || text == string(u) || address.Scheme != "http" && address.Scheme != "https" ||
		address.Hostname() == "" ||
		text != address.Scheme+"://"+address.Host {
		return nil, errors.New("http or https and a host with " + placeholder + " in it, and nothing else, such as " +
			"http://" +
			placeholder + ".cloudfn.svc.cluster.local")
	}
	return address, nil
}

// directory maps paths to functions, and functions to URLs.
type directory struct {
	owners   map[string]string   // the function, by how its paths begin: /v1/servers
	services map[string]*url.URL // by function
	// fallback is the function that answers all other paths, with 404 and a row in the request log.
	fallback string
}

func newDirectory(functions []function, upstream Upstream) (d directory, err error) {
	if d.owners, err = owners(functions); err != nil {
		return d, err
	}
	d.services = map[string]*url.URL{}
	for _, function := range d.owners {
		if d.services[function], err = upstream.at(function); err != nil {
			return d, err
		}
	}
	// Any function would do. The last by name is stats, which takes many requests at a time.
	d.fallback = slices.Max(slices.Collect(maps.Keys(d.services)))
	return d, nil
}

// routePrefix is the part of a route's pattern that identifies the function: /v1/NAME, /NAME, or the root.
var routePrefix = regexp.MustCompile(`^(?:[A-Z]+ )?(?:((?:/v1)?/[^/{]+)(?:/|$)|(/)\{\$\}$)`)

// owners maps the prefixes of the functions' routes to the functions.
func owners(functions []function) (map[string]string, error) {
	found := map[string]string{}
	for _, f := range functions {
		if f.Kind == kindEvent {
			continue // only events reach it
		}
		d, _ := f.described()
		for _, pattern := range d.Routes {
			match := routePrefix.FindStringSubmatch(pattern)
			if match == nil || match[1] == "/v1" {
				return nil, fmt.Errorf("%s serves %q, which does not begin with a name of its own", f.Name, pattern)
			}
			prefix := match[1] + match[2]
			if other, taken := found[prefix]; taken && other != f.Name {
				return nil, fmt.Errorf("%s and %s both serve %s", other, f.Name, prefix)
			}
			found[prefix] = f.Name
		}
	}
	if len(found) == 0 {
		return nil, errors.New("no function serves HTTP")
	}
	return found, nil
}

// function returns the function of a path. It reads segments as http.ServeMux does in the function: an encoded slash is
// part of a name, and a path that is not clean belongs to no function.
func (d directory) function(u *url.URL) string {
	escaped, prefix := u.EscapedPath(), ""
	for n, part := range strings.SplitN(escaped, "/", 4) {
		if n == 0 || n == 3 {
			continue
		}
		name, err := url.PathUnescape(part)
		if err != nil || strings.Contains(name, "/") {
			break
		}
		prefix += "/" + name
		if owner, ok := d.owners[prefix]; ok && (prefix != "/" || escaped == "/") {
			return owner
		}
	}
	return d.fallback
}

// toFunctions returns a transport for forwarding requests to functions.
func toFunctions() *http.Transport {
	return &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		TLSHandshakeTimeout: 5 * time.Second,
		MaxIdleConnsPerHost: 500,             // the concurrency of a pod (knative/services)
		IdleConnTimeout:     idleTimeout / 2, // sooner than the server closes it
		// The function decides about Expect: 100-continue.
		ExpectContinueTimeout: time.Second,
		DisableCompression:    true, // else the transport would decompress answers
	}
}

// foreign fails on an answer that is not the function's own: Knative or an ingress answers if the function cannot. It
// is unknown then whether something was done.
func foreign(resp *http.Response, function, id string) error {
	switch status := resp.StatusCode; {
	case status == http.StatusSwitchingProtocols: // which no one requested
	case resp.Header.Get("X-Request-Id") == id || status != http.StatusNotFound && status < 500:
		return nil
	case status == http.StatusGatewayTimeout:
		return apperr.New(apperr.Timeout, "the function %s took too long", function)
	}
	return apperr.New(apperr.BadGateway, "the function %s gave no answer of its own, but there was one with status %d",
		function, resp.StatusCode)
}

// classify returns why a request got no answer of its function. Unavailable promises that nothing was done.
func classify(ctx context.Context, function string, err error) error {
	if apperr.CodeOf(err) != apperr.Internal || ctx.Err() != nil {
		return err
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return apperr.Wrap(apperr.Unavailable, err, "the function %s cannot be reached", function)
	}
	return apperr.Wrap(apperr.BadGateway, err, "the function %s broke off", function)
}

// Functions reaches the functions that serve HTTP.
type Functions struct {
	all    []function
	alone  bool                                      // the process serves one function only
	own    func() http.Handler                       // the process's own API
	client func(http.RoundTripper) http.RoundTripper // tracing; nil = none
}

// At returns a transport to the functions at upstream, or to those of this process without an upstream. A request needs
// a path and, in its context, a request id. Errors have codes: Unavailable promises that nothing was done.
func (f Functions) At(variable string, upstream Upstream) (http.RoundTripper, error) {
	switch {
	case upstream != "":
	case f.alone:
		return nil, errors.New(variable + " is empty: set it to the URL of the functions, which this process does " +
			"not serve")
	default:
		return inside{f.own}, nil
	}
	directory, err := newDirectory(f.all, upstream)
	if err != nil {
		return nil, err
	}
	o := outside{directory, toFunctions()}
	if f.client != nil {
		o.client = f.client(o.client)
	}
	return o, nil
}

// outside sends a request to the service of its function.
type outside struct {
	directory
	client http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (o outside) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, function := r.Context(), o.function(r.URL)
	r = identified(r)
	// Knative routes by it
	r.URL.Scheme, r.URL.Host, r.Host = o.services[function].Scheme, o.services[function].Host, ""
	httpx.SendOnce(r.Header)
	resp, err := o.client.RoundTrip(r)
	if err != nil {
		return nil, classify(ctx, function, err)
	}
	if err := foreign(resp, function, httpx.RequestID(ctx)); err != nil {
		_ = resp.Body.Close()
		return nil, err
	}
	return resp, nil
}

// inside calls the process's own API without HTTP: a process need not know its own address.
type inside struct{ own func() http.Handler }

// RoundTrip implements http.RoundTripper.
func (i inside) RoundTrip(r *http.Request) (*http.Response, error) {
	r = identified(r)
	if r.Body == nil {
		r.Body = http.NoBody
	}
	body, sent := io.Pipe()
	w := &answering{header: http.Header{}, begun: make(chan *http.Response, 1), body: sent}
	go func() {
		err := errors.New("the function broke off")
		defer func() {
			_ = recover() // the edge has logged it; the reader gets an error
			w.WriteHeader(http.StatusBadGateway)
			_ = sent.CloseWithError(err)
		}()
		i.own().ServeHTTP(w, r)
		err = nil
	}()
	resp := <-w.begun
	resp.Body, resp.Request = body, r
	return resp, nil
}

// identified returns a copy of the request with its id in the header.
func identified(r *http.Request) *http.Request {
	r = r.Clone(r.Context())
	r.Header.Set("X-Request-Id", httpx.RequestID(r.Context()))
	return r
}

// answering is an answer while its body is being read.
type answering struct {
	header http.Header
	begun  chan *http.Response
	once   sync.Once
	body   *io.PipeWriter
}

// Header implements http.ResponseWriter.
func (w *answering) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter.
func (w *answering) WriteHeader(status int) {
	w.once.Do(func() { w.begun <- &http.Response{StatusCode: status, Header: w.header.Clone(), ContentLength: -1} })
}

// Write implements http.ResponseWriter.
func (w *answering) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(b)
}
