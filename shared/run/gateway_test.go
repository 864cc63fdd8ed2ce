package run

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/sethvargo/go-envconfig"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
	"github.com/cloudfn/cloudfn/shared/limit"
)

// testGateway is a gateway with the services behind it, and what it logged.
type testGateway struct {
	*gateway
	url string

	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (g *testGateway) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.text.Write(p)
}

// line waits for one with all of the words, because an answer leaves before its line is written.
func (g *testGateway) line(t *testing.T, words ...string) {
	t.Helper()
	for range 500 {
		for line := range strings.Lines(g.logs()) {
			if !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(line, word) }) {
				return
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("no line has %q: %s", words, g.logs())
}

func (g *testGateway) logs() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.text.String()
}

func woken(name string) function {
	return function{Declaration: Declaration{Name: name, Kind: kindEvent, Routes: []string{"POST /events/" + name}}}
}

func listed(name string, patterns ...string) function {
	return function{Declaration: Declaration{Name: name, Routes: patterns}}
}

// newTestGateway has console, launch, servers, stats and an event function. Each has a service of its own, which serve
// answers for; the name is in the request's Host. Starting it sets the default logger, so these tests are not parallel.
func newTestGateway(t *testing.T, serve http.HandlerFunc) *testGateway {
	t.Helper()
	functions := []function{
		woken("collect-stats"),
		listed("stats", "GET /v1/stats", "GET /v1/requests"),
		listed("launch", "POST /v1/launch", "GET /v1/launch/{id}"),
		listed("servers", "GET /v1/servers", "GET /v1/servers/{id}"),
		listed("console", "GET /{$}", "GET /console", "GET /console/{$}", "GET /console/{file}",
			"/console/api/{path...}"),
	}
	g := &testGateway{}
	var err error
	g.gateway, err = newGateway(t.Context(), envconfig.MapLookuper(map[string]string{
		"GATEWAY_UPSTREAM": "http://{function}.fn.test",
	}), functions, g)
	if err != nil {
		t.Fatal(err)
	}
	addresses := map[string]string{}
	for name := range g.services {
		s := httptest.NewServer(serve)
		t.Cleanup(s.Close)
		addresses[name+".fn.test:80"] = s.Listener.Addr().String()
	}
	g.transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, addresses[addr])
	}
	server := httptest.NewServer(g.handler())
	t.Cleanup(func() {
		server.Close()
		g.close(context.Background())
	})
	g.url = server.URL
	return g
}

// send writes a request as it stands, which http.Client would put right.
func (g *testGateway) send(t *testing.T, request string) (*http.Response, string) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(g.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(2 * time.Minute)) // an answer that never comes fails its own test
	_, _ = io.WriteString(conn, request)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return resp, string(text)
}

func TestGatewayFindsTheFunction(t *testing.T) {
	g := newTestGateway(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Host, " ", r.RequestURI) })
	for target, want := range map[string]string{
		"/v1/servers": "servers", "/v1/servers/": "servers", "/v1/servers?": "servers", "/v1/stats": "stats",
		"/v1/requests":                           "stats",
		"/v1/servers?limit=1&&b;c=%zz&x=a%20b+c": "servers", "/v1/servers/a%2fb%2Fc%7e": "servers",
		"/v1/servers//x/./y":   "servers",
		"/v1/servers/../stats": "servers", "/v1/%73ervers": "servers", "/v1/launch/1": "launch",
		// What no one serves is for the last function by name to refuse.
		"/": "console", "/?x": "console", "/console": "console", "/console/": "console", "/console/app.js": "console",
		"/%63onsole/x":            "console",
		"/console/api/v1/servers": "console", "/console/api%2Fv1/servers": "console", "/console%2Fapi": "stats",
		"/consolex": "stats", "//": "stats",
		"//console": "stats", "/v1": "stats", "/v1/": "stats", "/v1/status": "stats", "/v1/openapi.yaml": "stats",
		"/v1//servers": "stats", "//v1/servers": "stats", "/v1/./servers": "stats", "/v1/servers%2Fx": "stats",
		"/v1%2Fservers": "stats",
		"/v1/serversx":  "stats", "/V1/servers": "stats", "/v1/servers;x": "stats", "/v2/servers": "stats",
		"/healthz/":             "stats",
		"/events/collect-stats": "stats", "/v1/collect-stats": "stats", "/%2e%2e/v1/servers": "stats",
		"//healthz": "stats",
	} {
		resp, got := g.send(t, "GET "+target+" HTTP/1.1\r\nHost: api.example.com\r\n\r\n")
		if resp.StatusCode != http.StatusOK || got != want+".fn.test "+target {
			t.Errorf("%s: got %d from %s, want it from %s", target, resp.StatusCode, got, want)
		}
	}
	if _,
		got := g.send(t,
		"GET http://u:p@elsewhere:1/v1/servers?x HTTP/1.1\r\nHost: elsewhere:1\r\n\r\n"); got != "servers.fn.test /v1/servers?x" {
		t.Errorf("an absolute URL: got %s", got)
	}
	if _,
		got := g.send(t,
		"GET /v1/servers/\"ä| HTTP/1.1\r\nHost: x\r\n\r\n"); got != "servers.fn.test /v1/servers/%22%C3%A4%7C" {
		t.Errorf("bytes that no URL may have: got %s", got)
	}
	if resp, got := g.send(t, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"); resp.StatusCode != http.StatusOK ||
		got != "ok\n" {
		t.Errorf("healthz: got %d %s", resp.StatusCode, got)
	}
	g.line(t, `"msg":"request"`, `"function":"stats"`, `"method":"GET"`, `"path":"/v1/requests"`, `"status":200`,
		`"level":"INFO"`, `"request_id":"req-`)
	if strings.Contains(g.logs(), `"/healthz"`) || strings.Contains(g.logs(), "WARN") {
		t.Errorf("it logged %s", g.logs())
	}
}

func TestGatewayHeaders(t *testing.T) {
	var got http.Header
	g := newTestGateway(t, func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Clone()
		h := w.Header()
		h.Set("X-Request-Id", got.Get("X-Request-Id"))
		h["Location"], h["Set-Cookie"], h["Content-Encoding"] = []string{"/v1/launch/1"}, []string{"a=1", "b=2"},
			[]string{"gzip"}
		h["Keep-Alive"], h["Date"], h["Content-Type"] = []string{"timeout=5"}, nil, nil
		w.WriteHeader(http.StatusTemporaryRedirect)
		_, _ = w.Write([]byte("not gzip"))
	})
	resp, text := g.send(t, "GET /v1/servers HTTP/1.1\r\nHost: api.example.com\r\nX-Auth-Token: a\r\nX-Auth-Token: "+
		"b\r\nForwarded: for=6.6.6.6\r\n"+
		"X-Forwarded-For: 6.6.6.6\r\nX-Forwarded-Host: evil\r\nX-Forwarded-Proto: https\r\n"+
		"Connection: X-Drop, Upgrade\r\nX-Drop: 1\r\nUpgrade: websocket\r\n"+
		"Idempotency-Key: 1\r\nX-Idempotency-Key: 1\r\nTe: gzip\r\n\r\n")
	id := got.Get("X-Request-Id")
	want := http.Header{
		"X-Auth-Token": {"a", "b"}, "X-Request-Id": {id},
		"X-Forwarded-For": {"6.6.6.6, 127.0.0.1"}, "X-Forwarded-Host": {"evil"}, "X-Forwarded-Proto": {"https"},
		"Forwarded": {`host="evil";proto="https"`}, "Idempotency-Key": {"1"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("in: %s", diff)
	}
	want = http.Header{
		"X-Request-Id": {id}, "Location": {"/v1/launch/1"}, "Set-Cookie": {"a=1", "b=2"}, "Content-Encoding": {"gzip"},
		"Content-Length": {"8"},
		"Date":           resp.Header["Date"], // the gateway's own, because there was none
	}
	if diff := cmp.Diff(want, resp.Header); diff != "" || resp.StatusCode != http.StatusTemporaryRedirect ||
		text != "not gzip" {
		t.Errorf("out: %d %s %s", resp.StatusCode, text, diff)
	}
	g.line(t, `"request"`, `"status":307`, id)
	g.send(t, "GET /v1/servers HTTP/1.1\r\nHost: api.example.com\r\n\r\n")
	f := fmt.Sprint(got["X-Forwarded-For"], got["X-Forwarded-Host"], got["X-Forwarded-Proto"], got["Forwarded"])
	if f != `[127.0.0.1] [api.example.com] [http] [host="api.example.com";proto="http"]` {
		t.Errorf("without an ingress: got %s", f)
	}
	const given = "req-11111111-2222-4333-8444-555555555555"
	for sent, kept := range map[string]bool{given: true, given[4:]: true, "mine": false, "": false} {
		resp,
			_ := g.send(t,
			"GET /v1/servers HTTP/1.1\r\nHost: x\r\nX-Request-Id: "+sent+"\r\nX-Request-Id: other\r\n\r\n")
		id := got.Get("X-Request-Id")
		if (id == given) != kept || len(id) != len(given) || len(got.Values("X-Request-Id")) != 1 ||
			resp.Header.Get("X-Request-Id") != id {
			t.Errorf("%q became %q", sent, got.Values("X-Request-Id"))
		}
		g.line(t, `"request"`, id)
	}
}

// TestGatewayStreams each way: the second half of a body is only sent when the first has arrived.
func TestGatewayStreams(t *testing.T) {
	half := make(chan struct{})
	g := newTestGateway(t, func(w http.ResponseWriter, r *http.Request) {
		first := make([]byte, 5)
		_, err := io.ReadFull(r.Body, first)
		half <- struct{}{}
		rest, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s%s %v,", first, rest, err)
		_ = http.NewResponseController(w).Flush()
		<-half
		fmt.Fprint(w, "end")
	})
	read, write := io.Pipe()
	go func() {
		_, _ = write.Write([]byte("first"))
		<-half
		_, _ = write.Write([]byte(" second"))
		_ = write.Close()
	}()
	resp, err := http.Post(g.url+"/v1/launch", "text/plain", read)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	first := make([]byte, 19)
	_, err = io.ReadFull(resp.Body, first)
	half <- struct{}{}
	rest, _ := io.ReadAll(resp.Body)
	if string(first) != "first second <nil>," || err != nil || string(rest) != "end" {
		t.Errorf("got %s%s %v", first, rest, err)
	}
}

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

// TestGatewayManyRequests has a thousand requests on their way together: each gets its own answer.
func TestGatewayManyRequests(t *testing.T) {
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

// unlimited are limits that no test reaches.
func unlimited(t *testing.T) *limit.Limits {
	t.Helper()
	limits, err := limit.New(limit.Config{Address: 100_000, Project: 100_000}, daemonInFlight)
	if err != nil {
		t.Fatal(err)
	}
	return limits
}

// TestGatewayEarlyAnswer: the client gets the function's answer although it never sends the rest of the body. The
// gateway's own answer after its time limit would be a 504.
func TestGatewayEarlyAnswer(t *testing.T) {
	edge := httpx.Edge{
		Authenticate: func(ctx context.Context, _ *http.Request) (context.Context, error) {
			return ctx, apperr.New(apperr.Unauthenticated, "who?")
		},
		Caller: func(context.Context) domain.Identity { return domain.Identity{} },
		Ready:  func(context.Context) error { return nil }, Record: func(context.Context, domain.Request) error {
			return nil
		}, Timeout: time.Minute,
		Limits: unlimited(t), Known: func(http.Header) (domain.Identity, bool) { return domain.Identity{}, false },
	}
	serve := edge.Handler([]httpx.Route{httpx.Handle("POST /v1/launch", func(*http.Request) (string, error) {
		return "", nil
	})})
	for name, rest := range map[string]string{
		"chunked": "Transfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n", "with a length": "Content-Length: 10\r\n\r\n{",
		"that asks first": "Content-Length: 10\r\nExpect: 100-continue\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			g := newTestGateway(t, serve.ServeHTTP)
			resp, text := g.send(t, "POST /v1/launch HTTP/1.1\r\nHost: x\r\n"+rest)
			if resp.StatusCode != http.StatusUnauthorized || !strings.Contains(text, "who?") || !resp.Close {
				t.Errorf("got %d %s", resp.StatusCode, text)
			}
		})
	}
}

// TestGatewayMalformedBody is the client's fault.
func TestGatewayMalformedBody(t *testing.T) {
	g := newTestGateway(t, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.ReadAll(r.Body) })
	resp, text := g.send(t, "POST /v1/launch HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
	if resp.StatusCode != http.StatusBadRequest || !strings.Contains(text, `"code":"invalid"`) ||
		strings.Contains(g.logs(), "WARN") {
		t.Errorf("got %d %s, logged %s", resp.StatusCode, text, g.logs())
	}
}

// TestGatewayStalledBody is answered when the time is up, also if the body never ends.
func TestGatewayStalledBody(t *testing.T) {
	g := newTestGateway(t, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.ReadAll(r.Body) })
	g.cfg.RequestTimeout = 300*time.Millisecond - coldStart
	resp, text := g.send(t, "POST /v1/launch HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{")
	if resp.StatusCode != http.StatusGatewayTimeout || !strings.Contains(text, `"code":"timeout"`) {
		t.Errorf("got %d %s", resp.StatusCode, text)
	}
	g.line(t, "WARN", `"code":"timeout"`)
}

// TestGatewayOversizeBody has the function's own answer, and is not read to its end.
func TestGatewayOversizeBody(t *testing.T) {
	for range 20 {
		g := newTestGateway(t, func(w http.ResponseWriter, r *http.Request) {
			if n, err := io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, httpx.MaxBody)); err != nil {
				http.Error(w, fmt.Sprint("the function's own words after ", n), http.StatusRequestEntityTooLarge)
			}
		})
		for _, length := range []int64{-1, 1 << 30} {
			sent := &counted{}
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, g.url+"/v1/launch",
				io.LimitReader(sent, 1<<30))
			if err != nil {
				t.Fatal(err)
			}
			req.ContentLength = length
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			text, _ := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusRequestEntityTooLarge ||
				string(text) != "the function's own words after 1048576\n" || sent.bytes.Load() > 64<<20 {
				t.Errorf("length %d: got %d %s after %d bytes", length, resp.StatusCode, text, sent.bytes.Load())
			}
		}
		if strings.Contains(g.logs(), "WARN") {
			t.Fatalf("it logged %s", g.logs())
		}
	}
}

type counted struct{ bytes atomic.Int64 }

// Read gives spaces.
func (c *counted) Read(p []byte) (int, error) {
	c.bytes.Add(int64(len(p)))
	return copy(p, bytes.Repeat([]byte(" "), len(p))), nil
}
