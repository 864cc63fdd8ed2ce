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

// slowly is a body that comes piece by piece, one a second, and never ends by itself.
type slowly struct {
	piece string
	sent  int
	most  int // pieces; 0 = any number
}

// Read implements io.Reader.
func (s *slowly) Read(p []byte) (int, error) {
	if s.most > 0 && s.sent == s.most {
		return 0, io.EOF
	}
	time.Sleep(time.Second)
	s.sent++
	return copy(p, s.piece), nil
}

// TestSlowBodiesAreCut long before the request's own deadline, and bodies of slow but honest clients are not.
func TestSlowBodiesAreCut(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		body   *slowly
		status int
		took   time.Duration
	}{
		"a byte a second":     {&slowly{piece: "x"}, 400, bodyGrace},
		"two kibibytes, slow": {&slowly{piece: strings.Repeat("x", 2*bodyRate), most: 40}, 200, 40 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := &recorder{}
			edge := j.edge()
			edge.Timeout = time.Minute
			api := edge.Handler([]Route{Handle("POST /x", func(r *http.Request) (int, error) {
				body, err := Bytes(r)
				return len(body), err
			})})
			synctest.Test(t, func(t *testing.T) {
				client := inMemory(t, api, func(c net.Conn) net.Conn { return c })
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://x/x", tc.body)
				if err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				resp, err := client.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				took := time.Since(began)
				defer time.Sleep(2 * time.Second) // the transport ends with the body's next piece
				text, _ := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				isSlow := strings.Contains(string(text), "too slowly: send at least 1024 bytes a second")
				if resp.StatusCode != tc.status || took < tc.took || took > tc.took+2*time.Second ||
					isSlow != (tc.status == http.StatusBadRequest) {
					t.Errorf("got %d %s after %s", resp.StatusCode, text, took)
				}
			})
		})
	}
}
