package run

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
	"github.com/cloudfn/cloudfn/shared/limit"
)

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
