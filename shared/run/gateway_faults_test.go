package run

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/httpx"
)

// hangUp ends the connection in the middle of an exchange, after some words.
func hangUp(w http.ResponseWriter, words string) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err == nil {
		_, _ = io.WriteString(conn, words)
		_ = conn.Close()
	}
}

// TestGatewayFailures are problems that show nothing of what is behind the gateway, and one line for the operator.
func TestGatewayFailures(t *testing.T) {
	const request = "%s /v1/servers HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
	for name, tc := range map[string]struct {
		serve  http.HandlerFunc // nil: no one listens
		status int
		code   string
	}{
		"down":   {nil, 503, "unavailable"},
		"closed": {func(w http.ResponseWriter, _ *http.Request) { hangUp(w, "") }, 502, "bad_gateway"},
		"no HTTP": {
			func(w http.ResponseWriter, _ *http.Request) { hangUp(w, "SSH-2.0-canary\r\n\r\n") }, 502, "bad_gateway",
		},
		"torn": {
			func(w http.ResponseWriter, _ *http.Request) { hangUp(w, "HTTP/1.1 200 OK\r\nX-Canary: ") }, 502,
			"bad_gateway",
		},
		"for hours": {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, 504, "timeout"},
	} {
		for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodHead} {
			t.Run(name+" "+method, func(t *testing.T) {
				var calls atomic.Int64
				g := newTestGateway(t, func(w http.ResponseWriter, r *http.Request) {
					calls.Add(1)
					_, _ = io.ReadAll(r.Body)
					tc.serve(w, r)
				})
				if tc.serve == nil {
					closed := httptest.NewServer(nil)
					closed.Close()
					g.transport.DialContext = nil
					g.services["servers"].Host = closed.Listener.Addr().String()
				}
				if tc.status == http.StatusGatewayTimeout { // the others are answered before any time limit
					g.cfg.RequestTimeout = 300*time.Millisecond - coldStart
				}
				resp, text := g.send(t, fmt.Sprintf(request, method))
				id, h := resp.Header.Get("X-Request-Id"), resp.Header
				var p httpx.Problem
				dec := json.NewDecoder(strings.NewReader(text))
				dec.DisallowUnknownFields()
				if err := dec.Decode(&p); method == http.MethodHead {
					p = httpx.Problem{
						Type: "about:blank", Title: http.StatusText(tc.status), Status: tc.status, Detail: "-",
						Code: "-", RequestID: id,
					}
				} else if err != nil || string(p.Code) != tc.code {
					t.Errorf("the answer is no such problem: %v %s", err, text)
				}
				if resp.StatusCode != tc.status || p.Status != tc.status || p.Type != "about:blank" ||
					p.Title != http.StatusText(tc.status) || p.Detail == "" ||
					p.RequestID != id || len(id) != 40 || h.Get("Content-Type") != httpx.ProblemType ||
					(h.Get("Retry-After") != "") != (tc.status == 503) {
					t.Errorf("got %d %v %s", resp.StatusCode, h, text)
				}
				if shown := fmt.Sprint(h, text); strings.Contains(shown, "127.0.0.1") ||
					strings.Contains(shown, "fn.test") || strings.Contains(strings.ToLower(shown), "canary") {
					t.Errorf("it shows too much: %s", shown)
				}
				if tc.serve != nil && calls.Load() != 1 {
					t.Errorf("it was sent %d times", calls.Load())
				}
				g.line(t, `"msg":"request"`, fmt.Sprintf(`"status":%d`, tc.status), id)
				if n := strings.Count(g.logs(), "WARN"); n != 1 {
					t.Errorf("%d lines: %s", n, g.logs())
				}
				g.line(t, "WARN", `"msg":"request failed"`, `"function":"servers"`, `"code":"`+tc.code+`"`, `"error":`,
					id)
			})
		}
	}
}

// TestGatewayAnswerBreaksOff: the client must not take half an answer for a whole one.
func TestGatewayAnswerBreaksOff(t *testing.T) {
	g := newTestGateway(t, func(w http.ResponseWriter, _ *http.Request) {
		hangUp(w, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n")
	})
	resp, err := http.Get(g.url + "/v1/servers")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, err := io.ReadAll(resp.Body); err == nil || string(text) != "half" {
		t.Errorf("got %s %v", text, err)
	}
	g.line(t, "WARN", `"msg":"request failed"`, "unexpected EOF", `"function":"servers"`, `"code":"bad_gateway"`,
		`"request_id":"req-`)
	g.line(t, `"msg":"request"`, `"status":502`, `"code":"bad_gateway"`)
	if n := strings.Count(g.logs(), "WARN"); n != 1 {
		t.Errorf("%d lines: %s", n, g.logs())
	}
}

// TestGatewayClientHangsUpInAnAnswer that it has in part.
func TestGatewayClientHangsUpInAnAnswer(t *testing.T) {
	g := newTestGateway(t, func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			_, _ = w.Write(make([]byte, 1<<16))
		}
	})
	conn, err := net.Dial("tcp", strings.TrimPrefix(g.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(conn, "GET /v1/servers HTTP/1.1\r\nHost: x\r\n\r\n")
	_, _ = io.ReadFull(conn, make([]byte, 1<<16))
	_ = conn.Close()
	g.line(t, `"msg":"request"`, `"status":499`, `"code":"client_gone"`)
	if strings.Contains(g.logs(), "WARN") {
		t.Errorf("it logged %s", g.logs())
	}
}

// TestGatewayTimeoutLeavesTheConnection as it was, or ends it: the next request on it is answered. Only the requests
// that must time out have a short limit.
func TestGatewayTimeoutLeavesTheConnection(t *testing.T) {
	g := newTestGateway(t, func(_ http.ResponseWriter, r *http.Request) {
		if _, _ = io.ReadAll(r.Body); r.URL.Path != "/v1/servers" {
			<-r.Context().Done()
		}
	})
	limits := map[int]time.Duration{504: 100*time.Millisecond - coldStart, 200: g.cfg.RequestTimeout}
	client := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}}
	t.Cleanup(client.CloseIdleConnections)
	for range 3 {
		for _, slow := range []string{http.MethodGet, http.MethodPost} {
			for path, want := range map[string]int{"/v1/servers/slow": 504, "/v1/servers": 200} {
				req, err := http.NewRequestWithContext(t.Context(), slow, g.url+path,
					strings.NewReader("{}"[:len(slow)/4*2]))
				if err != nil {
					t.Fatal(err)
				}
				g.cfg.RequestTimeout = limits[want]
				resp, err := client.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				if _ = resp.Body.Close(); resp.StatusCode != want {
					t.Errorf("%s %s: got %d, want %d", slow, path, resp.StatusCode, want)
				}
			}
		}
	}
}

// TestGatewayForeignAnswers are those of an ingress or of Knative, in place of a function that cannot answer.
func TestGatewayForeignAnswers(t *testing.T) {
	for name, tc := range map[string]struct {
		status int
		id     string // "own" is the request's
		want   int
		code   string
	}{
		"no such host":         {404, "", 502, "bad_gateway"},
		"a copy was killed":    {502, "", 502, "bad_gateway"},
		"no copy came up":      {503, "", 502, "bad_gateway"},
		"the platform's limit": {504, "", 504, "timeout"},
		"another request's":    {500, "req-11111111-2222-4333-8444-555555555555", 502, "bad_gateway"},
		"a tunnel":             {101, "own", 502, "bad_gateway"},
		"the function's 404":   {404, "own", 404, ""},
		"the function's 503":   {503, "own", 503, ""},
		"the framework's":      {301, "", 301, ""},
		"someone else's sorry": {403, "", 403, ""},
	} {
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			t.Run(name+" "+method, func(t *testing.T) {
				g := newTestGateway(t, func(w http.ResponseWriter, r *http.Request) {
					id := strings.ReplaceAll(tc.id, "own", r.Header.Get("X-Request-Id"))
					hangUp(w,
						fmt.Sprintf("HTTP/1.1 %d Canary\r\nContent-Length: 6\r\nX-Request-Id: %s\r\nX-Canary: 1\r\n\r\ncanary", tc.status, id))
				})
				resp, text := g.send(t, method+" /v1/servers HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
				id := resp.Header.Get("X-Request-Id")
				if resp.StatusCode != tc.want || len(id) != 40 || resp.Header.Get("Retry-After") != "" {
					t.Errorf("got %d %v %s", resp.StatusCode, resp.Header, text)
				}
				if tc.code == "" {
					g.line(t, `"msg":"request"`, fmt.Sprintf(`"status":%d`, tc.status), id)
					return
				}
				if resp.Header.Get("Content-Type") != httpx.ProblemType ||
					strings.Contains(strings.ToLower(fmt.Sprint(resp.Header, text)), "canary") ||
					method == http.MethodGet && !strings.Contains(text, `"code":"`+tc.code+`"`) {
					t.Errorf("got %v %s", resp.Header, text)
				}
				g.line(t, "WARN", `"msg":"request failed"`, `"code":"`+tc.code+`"`, id)
				g.line(t, `"msg":"request"`, fmt.Sprintf(`"status":%d`, tc.want), id)
			})
		}
	}
}

// TestGatewayClientHangsUp ends the function's request too, and is no one's fault.
func TestGatewayClientHangsUp(t *testing.T) {
	for name, upload := range map[string]bool{"while it waits": false, "while it sends": true} {
		t.Run(name, func(t *testing.T) {
			began, ended := make(chan struct{}), make(chan struct{})
			g := newTestGateway(t, func(_ http.ResponseWriter, r *http.Request) {
				close(began)
				_, _ = io.ReadAll(r.Body)
				if !upload {
					<-r.Context().Done()
				}
				close(ended)
			})
			conn, err := net.Dial("tcp", strings.TrimPrefix(g.url, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			body := "{}"
			if upload {
				body = "{"
			}
			_, _ = io.WriteString(conn, "POST /v1/launch HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n"+body)
			<-began
			_ = conn.Close()
			<-ended
			g.line(t, `"msg":"request"`, `"status":499`, `"code":"client_gone"`)
			if strings.Contains(g.logs(), "WARN") || strings.Contains(g.logs(), "ERROR") {
				t.Errorf("it logged %s", g.logs())
			}
		})
	}
}

// TestGatewayDeadConnection: a POST whose kept connection the function has just ended is not sent a second time.
func TestGatewayDeadConnection(t *testing.T) {
	var posts atomic.Int64
	g := newTestGateway(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			posts.Add(1)
			hangUp(w, "")
		}
	})
	for i := range 5 {
		post := "POST /v1/launch HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
		if resp, _ := g.send(t, "GET /v1/launch/1 HTTP/1.1\r\nHost: x\r\n\r\n"); resp.StatusCode != http.StatusOK {
			t.Errorf("got %d", resp.StatusCode)
		}
		if i%2 == 0 {
			post = "POST /v1/launch HTTP/1.1\r\nHost: x\r\nIdempotency-Key: 1\r\nX-Idempotency-Key: 1\r\n\r\n"
		}
		if resp, _ := g.send(t, post); resp.StatusCode != http.StatusBadGateway {
			t.Errorf("got %d", resp.StatusCode)
		}
	}
	if posts.Load() != 5 {
		t.Errorf("it was sent %d times", posts.Load())
	}
}
