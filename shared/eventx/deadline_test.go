package eventx

import (
	"context"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
)

// TestTheWorkEnds with its timeout or with the process, and not because the source hangs up.
func TestTheWorkEnds(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		hangsUp, processEnds bool
		after                time.Duration
	}{
		"by its timeout":      {after: time.Minute},
		"with the process":    {processEnds: true, after: time.Second},
		"not with its source": {hangsUp: true, after: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := binary(t, Ping("tick-things", key, time.Now()))
			synctest.Test(t, func(t *testing.T) {
				source, hangUp := context.WithCancel(t.Context())
				process, end := context.WithCancel(t.Context())
				defer hangUp()
				defer end()
				time.AfterFunc(time.Second, func() {
					if tc.hangsUp {
						hangUp()
					}
					if tc.processEnds {
						end()
					}
				})
				began := time.Now()
				h := handler(func(ctx context.Context, _ cloudevents.Event) error {
					<-ctx.Done()
					return ctx.Err()
				})
				h.Running = process
				if w := serve(h, r.WithContext(source)); w.Code != 503 || time.Since(began) != tc.after {
					t.Errorf("got %d after %s", w.Code, time.Since(began))
				}
			})
		})
	}
}

// pipeListener accepts connections in memory, as synctest requires.
type pipeListener chan net.Conn

// Accept implements net.Listener.
func (l pipeListener) Accept() (net.Conn, error) {
	if conn, ok := <-l; ok {
		return shortDeadlineConn{conn}, nil
	}
	return nil, net.ErrClosed
}

// Close implements net.Listener.
func (l pipeListener) Close() error { close(l); return nil }

// Addr implements net.Listener.
func (l pipeListener) Addr() net.Addr { return &net.TCPAddr{} }

// shortDeadlineConn makes every read deadline a tenth of a second.
type shortDeadlineConn struct{ net.Conn }

// SetReadDeadline implements net.Conn.
func (c shortDeadlineConn) SetReadDeadline(t time.Time) error {
	if soon := time.Now().Add(100 * time.Millisecond); t.After(soon) {
		t = soon
	}
	return c.Conn.SetReadDeadline(t)
}

// TestLongWorkLeavesTheConnection as it was, with a body and without: the next request on it starts with a live
// context.
func TestLongWorkLeavesTheConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := handler(func(context.Context, cloudevents.Event) error { time.Sleep(300 * time.Millisecond); return nil })
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if err := r.Context().Err(); err != nil {
				t.Errorf("the request is born %v", err)
			}
			h.ServeHTTP(w, r)
			if err := r.Context().Err(); err != nil {
				t.Errorf("the request ends %v", err)
			}
		})}
		conns := make(pipeListener)
		go func() { _ = server.Serve(conns) }()
		t.Cleanup(func() { _ = server.Close() })
		dial := func(context.Context, string, string) (net.Conn, error) {
			client, server := net.Pipe()
			conns <- server
			return client, nil
		}
		transport := &http.Transport{MaxConnsPerHost: 1, DialContext: dial}
		t.Cleanup(transport.CloseIdleConnections)
		client := &http.Client{Transport: transport}
		for _, data := range []string{"", "", "some", ""} {
			event := Ping("tick-things", key, time.Now())
			if data != "" {
				_ = event.SetData("text/plain", data)
			}
			req, err := cloudevents.NewHTTPRequestFromEvent(t.Context(), "http://x", event)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			if _ = resp.Body.Close(); resp.StatusCode != http.StatusNoContent {
				t.Errorf("got %d", resp.StatusCode)
			}
		}
	})
}
