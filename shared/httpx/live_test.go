package httpx

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// TestClientHangsUp ends the work of a read, and never that of a change.
func TestClientHangsUp(t *testing.T) {
	t.Parallel()
	for method, tc := range map[string]struct {
		ended  bool
		status int
	}{http.MethodGet: {true, 499}, http.MethodPost: {false, 200}, http.MethodDelete: {false, 200}} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			j := &recorder{}
			began, ended, noticed := make(chan struct{}), make(chan bool, 1), make(chan struct{})
			api := j.edge().Handler([]Route{Handle(method+" /x", func(r *http.Request) (struct{}, error) {
				close(began)
				<-noticed
				if tc.ended {
					<-r.Context().Done()
				}
				ended <- r.Context().Err() != nil
				return struct{}{}, r.Context().Err()
			})})
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				context.AfterFunc(r.Context(), func() { close(noticed) })
				api.ServeHTTP(w, r)
			}))
			t.Cleanup(server.Close)
			ctx, hangUp := context.WithCancel(t.Context())
			req, err := http.NewRequestWithContext(ctx, method, server.URL+"/x", nil)
			if err != nil {
				t.Fatal(err)
			}
			go func() { <-began; hangUp() }()
			if resp, err := http.DefaultClient.Do(req); err == nil {
				_ = resp.Body.Close()
				t.Fatal("the client did not hang up")
			}
			if got := <-ended; got != tc.ended {
				t.Errorf("the work was ended: %t", got)
			}
			server.Close() // waits for the request
			if len(j.rows) != 1 || j.rows[0].Status != tc.status {
				t.Errorf("the rows are %+v", j.rows)
			}
		})
	}
}

// TestDeadline is 504, for reads and changes, and the row is written.
func TestDeadline(t *testing.T) {
	t.Parallel()
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			j := &recorder{}
			edge := j.edge()
			synctest.Test(t, func(t *testing.T) {
				w := httptest.NewRecorder()
				began := time.Now()
				edge.Handler([]Route{Handle(method+" /x", func(r *http.Request) (struct{}, error) {
					<-r.Context().Done()
					return struct{}{}, fmt.Errorf("asking nova: %w", r.Context().Err())
				})}).ServeHTTP(w, httptest.NewRequest(method, "/x", nil))
				took := time.Since(began)
				if p := problem(t, w); p.Status != 504 || p.Code != apperr.Timeout || took != edge.Timeout {
					t.Errorf("got %+v after %s, want 504 after %s", p, took, edge.Timeout)
				}
			})
			if len(j.rows) != 1 || j.rows[0].Status != 504 {
				t.Errorf("the rows are %+v", j.rows)
			}
		})
	}
}

// TestDeadlineOfWhoWaits holds for reads and changes: a function of the same process passes the request on, and must
// still answer.
func TestDeadlineOfWhoWaits(t *testing.T) {
	t.Parallel()
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var until time.Time
		handler := new(recorder).edge().Handler([]Route{Handle(method+" /x", func(r *http.Request) (struct{}, error) {
			until, _ = r.Context().Deadline()
			return struct{}{}, nil
		})})
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, method, "/x", nil))
		if want, _ := ctx.Deadline(); !until.Equal(want) {
			t.Errorf("%s: it may take until %s, and who waits for it until %s", method, until, want)
		}
	}
}

// TestOversizeBody is refused without reading it on, and the connection ends.
func TestOversizeBody(t *testing.T) {
	t.Parallel()
	j := &recorder{}
	server := serve(t, j.edge(), Handle("POST /x", func(r *http.Request) (struct{}, error) {
		_, err := readMedia(r)
		return struct{}{}, err
	}))
	sent := &endless{}
	resp, err := http.Post(server.URL+"/x", "application/json", io.LimitReader(sent, 1<<30))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusRequestEntityTooLarge || !resp.Close || sent.read.Load() > 64<<20 {
		t.Errorf("got %s after %d bytes, close %t", resp.Status, sent.read.Load(), resp.Close)
	}
	if len(j.rows) != 1 || j.rows[0].Code != string(apperr.TooLarge) {
		t.Errorf("the rows are %+v", j.rows)
	}
}

type endless struct{ read atomic.Int64 }

// Read gives spaces.
func (e *endless) Read(p []byte) (int, error) {
	e.read.Add(int64(len(p)))
	return copy(p, bytes.Repeat([]byte(" "), len(p))), nil
}

// TestSlowBody sends a byte now and then: the server cuts it when it has fallen behind by bodyGrace.
func TestSlowBody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		edge := (&recorder{}).edge()
		failed := make(chan error, 1)
		client, conn := net.Pipe()
		defer client.Close()
		serveInMemory(t, edge.Handler([]Route{Handle("POST /x", func(r *http.Request) (struct{}, error) {
			_, err := readMedia(r)
			failed <- err
			return struct{}{}, err
		})})) <- conn
		began := time.Now()
		go func() {
			_, err := io.WriteString(client,
				"POST /x HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n{")
			for err == nil {
				time.Sleep(50 * time.Millisecond)
				_, err = io.WriteString(client, " ")
			}
		}()
		answer := bufio.NewReader(client)
		resp, err := http.ReadResponse(answer, nil)
		if err != nil {
			t.Fatalf("no answer after %s: %v", time.Since(began), err)
		}
		if took := time.Since(began); resp.StatusCode != http.StatusBadRequest || took < bodyGrace ||
			took > bodyGrace+time.Second {
			t.Errorf("got %s after %s", resp.Status, took)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		if _, err := answer.ReadByte(); !errors.Is(err, io.EOF) {
			t.Errorf("the connection is still open: %v", err)
		}
		if err := <-failed; err == nil {
			t.Error("the handler read a body")
		}
	})
}

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

// slowly is a body that comes piece by piece, one a second, and never ends automatically.
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
