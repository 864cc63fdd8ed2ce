package httpx

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// shortDeadline makes every read deadline of a server's connections a tenth of a second.
type shortDeadline struct{ net.Listener }

// Accept implements net.Listener.
func (l shortDeadline) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return shortDeadlineConn{conn}, err
}

type shortDeadlineConn struct{ net.Conn }

// SetReadDeadline implements net.Conn.
func (c shortDeadlineConn) SetReadDeadline(t time.Time) error {
	if soon := time.Now().Add(100 * time.Millisecond); t.After(soon) {
		t = soon
	}
	return c.Conn.SetReadDeadline(t)
}

// TestTheReadDeadlineEndsWithTheBody: work that goes on after it harms neither its request nor the next on the
// connection.
func TestTheReadDeadlineEndsWithTheBody(t *testing.T) {
	t.Parallel()
	j := &recorder{}
	wait := func(r *http.Request) (string, error) {
		if r.Method == http.MethodPost {
			if _, err := readMedia(r); err != nil {
				return "", err
			}
		}
		select {
		case <-time.After(300 * time.Millisecond):
		case <-r.Context().Done():
		}
		return "", r.Context().Err()
	}
	server := httptest.NewUnstartedServer(j.edge().Handler([]Route{Handle("GET /x", wait), Handle("POST /x", wait)}))
	server.Listener = shortDeadline{server.Listener}
	server.Start()
	t.Cleanup(server.Close)
	client := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}}
	t.Cleanup(client.CloseIdleConnections)
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodGet} {
		body := ""
		if method == http.MethodPost {
			body = "{}"
		}
		req, err := http.NewRequestWithContext(t.Context(), method, server.URL+"/x", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		if _ = resp.Body.Close(); resp.StatusCode != http.StatusOK || resp.Close {
			t.Errorf("%s: got %d %s", method, resp.StatusCode, text)
		}
	}
}
