package httpx

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// shortDeadlineConn makes every read deadline a tenth of a second.
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
	api := j.edge().Handler([]Route{Handle("GET /x", wait), Handle("POST /x", wait)})
	synctest.Test(t, func(t *testing.T) {
		client := inMemory(t, api, func(c net.Conn) net.Conn { return shortDeadlineConn{c} })
		for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodGet} {
			body := ""
			if method == http.MethodPost {
				body = "{}"
			}
			req, err := http.NewRequestWithContext(t.Context(), method, "http://x/x", strings.NewReader(body))
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
	})
}
