package webhook

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

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
