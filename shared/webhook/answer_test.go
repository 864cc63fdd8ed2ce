package webhook

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// TestAnswers of receivers that say something else than yes. Nothing of what they say is in what we say.
func TestAnswers(t *testing.T) {
	t.Parallel()
	client := testClient(t, Config{Ranges: loopback, Timeout: 5 * time.Second}, nil)
	for name, tc := range map[string]struct {
		status     int
		retryAfter string
		want       Answer
		problem    string
		busy       bool
	}{
		"gone":                {410, "", Answer{Status: 410}, "gone", false},
		"busy, in seconds":    {429, "7", Answer{429, 7 * time.Second}, "429", true},
		"busy, without":       {429, "", Answer{Status: 429}, "429", true},
		"busy, nonsense":      {429, "soon", Answer{Status: 429}, "429", true},
		"busy, negative":      {429, "-1", Answer{Status: 429}, "429", true},
		"busy forever":        {503, "99999999999999999", Answer{503, maxRetryAfter}, "503", true},
		"unavailable":         {503, "", Answer{Status: 503}, "503", false},
		"broken":              {500, "", Answer{Status: 500}, "500", false},
		"no CloudEvents":      {415, "", Answer{Status: 415}, "binary mode", false},
		"a redirect":          {301, "", Answer{Status: 301}, "redirects", false},
		"taken, later":        {202, "", Answer{Status: 202}, "", false},
		"a status of its own": {799, "", Answer{Status: 799}, "799", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := receiver(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Retry-After", tc.retryAfter)
				w.Header().Set("Location", "http://127.0.0.1:1/canary")
				w.WriteHeader(tc.status)
				fmt.Fprint(w, "canary")
			})
			got, err := client.Send(t.Context(), url, []domain.Secret{NewSecret()}, anEvent(1), time.Now())
			if err != nil || got != tc.want || got.Busy() != tc.busy || got.OK() != (tc.problem == "") {
				t.Errorf("got %+v %v", got, err)
			}
			if p := got.Problem(); !strings.Contains(p, tc.problem) || strings.Contains(p, "canary") {
				t.Errorf("we say %q", p)
			}
		})
	}
}

func TestRetryAfterAsADate(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for text, want := range map[string]time.Duration{
		"Fri, 02 Jan 2026 03:05:05 GMT": time.Minute, "Fri, 02 Jan 2026 03:00:00 GMT": 0,
		"Sat, 02 Jan 2027 03:00:00 GMT":  maxRetryAfter,
		"Friday, 02-Jan-26 03:05:05 GMT": time.Minute, " 5 ": 5 * time.Second, "1.5": 0, "": 0,
	} {
		if got := retryAfter(http.Header{"Retry-After": {text}}, now); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

// TestReceiversThatDoNotAnswer: an attempt ends at its timeout, or before it when no answer can follow. The error does
// not repeat what the receiver sent.
func TestReceiversThatDoNotAnswer(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		speak func(net.Conn)
		code  apperr.Code
		says  string
	}{
		"hangs": {func(c net.Conn) { io.Copy(io.Discard, c) }, apperr.Timeout, "in time"},
		"drips its headers": {
			func(c net.Conn) { drip(c, "HTTP/1.1 200 OK\r\n", "X-Canary: a\r\n") }, apperr.Timeout, "in time",
		},
		"never ends a header": {
			func(c net.Conn) { flood(c, "HTTP/1.1 200 OK\r\nX-Canary: ") }, apperr.BadGateway, "makes sense",
		},
		"closes immediately": {func(net.Conn) {}, apperr.Unavailable, "closed"},
		"closes in a header": {
			func(c net.Conn) { fmt.Fprint(c, "HTTP/1.1 200 OK\r\nX-Canary: a\r\n") }, apperr.Unavailable, "closed",
		},
		"speaks no HTTP": {
			func(c net.Conn) { fmt.Fprint(c, "SSH-2.0-canary\r\n\r\n") }, apperr.BadGateway, "makes sense",
		},
		"sends many 1xx": {
			func(c net.Conn) { flood(c, "HTTP/1.1 103 Early Hints\r\nX-Canary: a\r\n\r\n") }, apperr.BadGateway,
			"makes sense",
		},
		"is not there": {nil, apperr.Unavailable, "refused"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := Config{Ranges: loopback, Timeout: 2 * time.Minute} // an attempt that reaches it has the wrong error
			if tc.code == apperr.Timeout {
				cfg.Timeout = time.Second
			}
			client := testClient(t, cfg, nil)
			_, err := client.Send(t.Context(), rawReceiver(t, tc.speak), []domain.Secret{NewSecret()}, anEvent(1),
				time.Now())
			if apperr.CodeOf(err) != tc.code || !strings.Contains(err.Error(), tc.says) ||
				strings.Contains(err.Error(), "anary") || strings.Contains(err.Error(), "127.0.0.1") {
				t.Errorf("got %v %v", apperr.CodeOf(err), err)
			}
		})
	}
}

// TestTheStatusDecides: a response counts from its status on. A body that drips or hangs is read for drainTimeout, one
// that floods up to maxAnswer.
func TestTheStatusDecides(t *testing.T) {
	t.Parallel()
	const ok = "HTTP/1.1 200 OK\r\n"
	for name, tc := range map[string]struct {
		speak func(net.Conn)
		took  time.Duration
	}{
		"drips": {func(c net.Conn) { drip(c, ok+"Content-Length: 1000000\r\n\r\n", "x") }, drainTimeout},
		"hangs": {
			func(c net.Conn) { fmt.Fprint(c, ok+"Content-Length: 5\r\n\r\n"); io.Copy(io.Discard, c) }, drainTimeout,
		},
		"floods":         {func(c net.Conn) { flood(c, ok+"\r\n") }, 0},
		"closes early":   {func(c net.Conn) { fmt.Fprint(c, ok+"Content-Length: 5\r\n\r\nab") }, 0},
		"a broken chunk": {func(c net.Conn) { fmt.Fprint(c, ok+"Transfer-Encoding: chunked\r\n\r\nzz\r\n") }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				client := testClient(t, Config{Ranges: loopback, Timeout: 10 * time.Second}, nil)
				client.http.Transport.(*http.Transport).DialContext = pipeTo(t, tc.speak)
				began := time.Now()
				answer, err := client.Send(t.Context(), "http://127.0.0.1/hook", []domain.Secret{NewSecret()},
					anEvent(1), began)
				if took := time.Since(began); err != nil || !answer.OK() || took != tc.took {
					t.Errorf("got %+v %v after %s, want 200 after %s", answer, err, took, tc.took)
				}
			})
		})
	}
}

// TestUpgradeIsNoConsent: a receiver that switches protocols has not taken the event.
func TestUpgradeIsNoConsent(t *testing.T) {
	t.Parallel()
	client := testClient(t, Config{Ranges: loopback, Timeout: time.Minute}, nil)
	upgrade := rawReceiver(t, func(c net.Conn) {
		fmt.Fprint(c, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n")
		io.Copy(io.Discard, c)
	})
	if answer, err := client.Send(t.Context(), upgrade, []domain.Secret{NewSecret()}, anEvent(1),
		time.Now()); err != nil || answer.OK() || answer.Status != 101 {
		t.Errorf("got %+v %v", answer, err)
	}
}

// TestTheCallersOwnEnd is not a failure of the receiver.
func TestTheCallersOwnEnd(t *testing.T) {
	t.Parallel()
	client := testClient(t, Config{Ranges: loopback, Timeout: 10 * time.Second}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	url := rawReceiver(t, func(c net.Conn) { cancel(); io.Copy(io.Discard, c) })
	if _, err := client.Send(ctx, url, []domain.Secret{NewSecret()}, anEvent(1), time.Now()); !errors.Is(err,
		context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestNamesThatAreNotKnown(t *testing.T) {
	t.Parallel()
	client := testClient(t, Config{Ranges: loopback, Timeout: 5 * time.Second},
		nameService(t, func(string) []netip.Addr { return nil }))
	_, err := client.Handshake(t.Context(), "https://canary.example/")
	if apperr.CodeOf(err) != apperr.Unavailable || strings.Contains(err.Error(), "canary") {
		t.Errorf("got %v", err)
	}
}

// rawReceiver reads a request and then says what speak says; nil is an address where no one listens.
func rawReceiver(t *testing.T, speak func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url := "http://" + l.Addr().String() + "/canary"
	if speak == nil {
		l.Close()
		return url
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go receive(conn, speak)
		}
	}()
	return url
}

// pipeTo dials a receiver in memory, as synctest requires. The test waits for the receiver's end: the bubble's time
// stops with the test.
func pipeTo(t *testing.T, speak func(net.Conn)) func(context.Context, string, string) (net.Conn, error) {
	t.Helper()
	var receivers sync.WaitGroup
	t.Cleanup(receivers.Wait)
	return func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		receivers.Go(func() { receive(server, speak) })
		return client, nil
	}
}

func receive(conn net.Conn, speak func(net.Conn)) {
	defer conn.Close()
	if req, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
		_, _ = io.Copy(io.Discard, req.Body)
		speak(conn)
	}
}

func drip(c net.Conn, first, drop string) {
	_, err := io.WriteString(c, first)
	for err == nil {
		time.Sleep(20 * time.Millisecond)
		_, err = io.WriteString(c, drop)
	}
}

func flood(c net.Conn, first string) {
	_, err := io.WriteString(c, first)
	for err == nil {
		_, err = io.WriteString(c, strings.Repeat(first, 100))
	}
}

// TestAConnectionThatEndsBetweenEvents, as receivers do to one that was idle, is no receiver that does not answer: the
// event goes over another one.
func TestAConnectionThatEndsBetweenEvents(t *testing.T) {
	t.Parallel()
	client := testClient(t, Config{Ranges: loopback, Timeout: 5 * time.Second}, nil)
	url := rawReceiver(t, func(c net.Conn) {
		fmt.Fprint(c, "HTTP/1.1 204 No Content\r\n\r\n")
		_, _ = c.Read(make([]byte, 1)) // the next event has come, and is not read
	})
	for n := range 4 {
		answer, err := client.Send(t.Context(), url, []domain.Secret{NewSecret()}, anEvent(n), time.Now())
		if err != nil || !answer.OK() {
			t.Errorf("event %d: %+v %v", n, answer, err)
		}
	}
}

// TestConnectionsAreKept while eight events at a time go to one receiver.
func TestConnectionsAreKept(t *testing.T) {
	t.Parallel()
	var made atomic.Int64
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			made.Add(1)
		}
	}
	server.Start()
	t.Cleanup(server.Close)
	client := testClient(t, Config{Ranges: loopback, Timeout: 5 * time.Second}, nil)
	var sending sync.WaitGroup
	for range 8 {
		sending.Go(func() {
			for n := range 20 {
				if _, err := client.Send(t.Context(), server.URL, []domain.Secret{NewSecret()}, anEvent(n),
					time.Now()); err != nil {
					t.Error(err)
				}
				time.Sleep(5 * time.Millisecond) // it is written down
			}
		})
	}
	sending.Wait()
	if n := made.Load(); n > 16 {
		t.Errorf("%d connections for 160 events", n)
	}
}

// TestTLS: HTTP/2 to a receiver with a certificate that is trusted; none that is not, that is too old, or that is no
// TLS.
func TestTLS(t *testing.T) {
	t.Parallel()
	var protocol string
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		protocol = r.Proto
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	trusted := x509.NewCertPool()
	trusted.AddCert(server.Certificate())
	cfg := Config{Ranges: loopback, Timeout: 5 * time.Second, Origin: "events.example.com"}
	client, err := newClient(cfg, nil, &tls.Config{RootCAs: trusted, MinVersion: tls.VersionTLS12})
	if err != nil {
		t.Fatal(err)
	}
	send := func(c *Client, url string) (Answer, error) {
		return c.Send(t.Context(), url, []domain.Secret{NewSecret()}, anEvent(1), time.Now())
	}
	if answer, err := send(client, server.URL); err != nil || !answer.OK() || protocol != "HTTP/2.0" {
		t.Errorf("got %+v %v by %s", answer, err, protocol)
	}
	old := httptest.NewUnstartedServer(http.NotFoundHandler())
	old.TLS = &tls.Config{MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10}
	old.StartTLS()
	t.Cleanup(old.Close)
	plain := receiver(t, func(http.ResponseWriter, *http.Request) {})
	for name, tc := range map[string]struct {
		client *Client
		url    string
	}{
		"not trusted": {testClient(t, cfg, nil), server.URL}, "too old": {client, old.URL}, "no TLS": {
			client, strings.Replace(plain, "http:", "https:", 1),
		},
		"another name": {client, strings.Replace(server.URL, "127.0.0.1", "localhost", 1)},
	} {
		if _, err := send(tc.client, tc.url); apperr.CodeOf(err) != apperr.Unavailable ||
			!strings.Contains(err.Error(), "TLS") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
