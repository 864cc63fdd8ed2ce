package openstack

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// hanging is a network on which calls to /volume wait until they are answered, or their context ends.
type hanging struct {
	mu      sync.Mutex
	sent    int
	answers chan int // the status of one call that waits
}

func (h *hanging) RoundTrip(req *http.Request) (*http.Response, error) {
	if !strings.HasPrefix(req.URL.Path, "/volume/") {
		return response(http.StatusOK, nil, ""), nil
	}
	h.mu.Lock()
	h.sent++
	h.mu.Unlock()
	select {
	case status := <-h.answers:
		return response(status, nil, ""), nil
	case <-req.Context().Done():
		return nil, req.Context().Err()
	}
}

// outcome is how a call ended, and when.
type outcome struct {
	err   error
	after time.Duration
}

// callers calls a limited transport.
type callers struct {
	rt    http.RoundTripper
	began time.Time
	mu    sync.Mutex
	ended []outcome
}

func (c *callers) call(ctx context.Context, method, address string) error {
	req, err := http.NewRequestWithContext(ctx, method, address, strings.NewReader("{}"))
	if err == nil {
		var resp *http.Response
		if resp, err = c.rt.RoundTrip(req); err == nil {
			err = resp.Body.Close()
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = append(c.ended, outcome{err, time.Since(c.began)})
	return err
}

// take returns the outcomes since the last time.
func (c *callers) take() []outcome {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	ended := c.ended
	c.ended = nil
	return ended
}

// TestServiceThatHangs: of 30 calls to a service that hangs 8 are sent, and the others are refused after 5 s. Later
// ones are refused immediately, until the service answers. Other services are called all the time.
func TestServiceThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const most, all, volume = 8, 30, "http://cloud/volume/v3/p/volumes"
		ctx, hangUp := context.WithCancel(t.Context())
		network := &hanging{answers: make(chan int)}
		c := &callers{began: time.Now(), rt: newTransport(nil, Options{
			InFlight: most, Wrap: func(http.RoundTripper) http.RoundTripper { return network },
		})}
		isRefused := func(o outcome) bool {
			return apperr.CodeOf(o.err) == apperr.Unavailable && errors.Is(o.err, apperr.ErrNotSent) &&
				apperr.As(o.err).Message == "the service at cloud does not answer: 8 calls are waiting"
		}
		for range all {
			go func() { _ = c.call(ctx, http.MethodPost, volume) }()
		}
		time.Sleep(permitWait - time.Millisecond)
		if ended := c.take(); len(ended) > 0 || network.sent != most {
			t.Fatalf("%d calls were sent, %d have ended", network.sent, len(ended))
		}
		time.Sleep(time.Millisecond)
		ended := c.take()
		for _, o := range ended {
			if !isRefused(o) || o.after != permitWait {
				t.Errorf("a call ended with %v after %s", o.err, o.after)
			}
		}
		if len(ended) != all-most || network.sent != most {
			t.Errorf("%d calls were refused, %d were sent", len(ended), network.sent)
		}
		c.began = time.Now()
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			if err := c.call(ctx, method, volume); !isRefused(outcome{err: err}) || time.Since(c.began) > 0 {
				t.Errorf("%s ended with %v after %s", method, err, time.Since(c.began))
			}
		}
		for _, other := range []string{"http://cloud/image/v2/images", "http://volume:8776/v3/volumes"} {
			if err := c.call(ctx, http.MethodGet, other); err != nil {
				t.Errorf("%s: %v", other, err)
			}
		}
		c.take()

		network.answers <- http.StatusGatewayTimeout // a proxy's word: the service still hangs
		synctest.Wait()
		go func() { _ = c.call(ctx, http.MethodPost, volume) }() // its permit
		synctest.Wait()
		if err := c.call(ctx, http.MethodPost, volume); !isRefused(outcome{err: err}) {
			t.Errorf("after a 504 a call ended with %v", err)
		}
		network.answers <- http.StatusOK
		c.take()
		go func() { _ = c.call(ctx, http.MethodPost, volume) }()
		synctest.Wait()
		go func() { _ = c.call(ctx, http.MethodPost, volume) }() // waits again
		if ended := c.take(); len(ended) > 0 {
			t.Errorf("a service that answers again refuses: %v", ended)
		}
		network.answers <- http.StatusOK
		time.Sleep(permitWait)
		if ended := c.take(); len(ended) != 1 || ended[0].err != nil {
			t.Errorf("ended are %v", ended)
		}
		hangUp()
		if ended := c.take(); len(ended) != most {
			t.Errorf("%d calls ended with their context", len(ended))
		}
		if err := c.call(t.Context(), http.MethodGet, "http://cloud/image/"); err != nil {
			t.Error(err)
		}
	})
}

// TestWaitForPermitEndsWithItsContext: the call is not sent, its body is closed, and its permit is another's.
func TestWaitForPermitEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		network := &hanging{answers: make(chan int)}
		c := &callers{began: time.Now(), rt: newTransport(nil, Options{
			InFlight: 1, Wrap: func(http.RoundTripper) http.RoundTripper { return network },
		})}
		go func() { _ = c.call(t.Context(), http.MethodGet, "http://cloud/volume/x") }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		body := &closed{Reader: strings.NewReader("{}")}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://cloud/volume/x", body)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := c.rt.RoundTrip(req)
		if err == nil {
			_ = resp.Body.Close()
		}
		if err = classify("cinder", err); apperr.CodeOf(err) != apperr.Timeout || !errors.Is(err, apperr.ErrNotSent) ||
			network.sent != 1 || !body.isClosed {
			t.Errorf("%v, %d were sent, closed %t", err, network.sent, body.isClosed)
		}
		network.answers <- http.StatusOK
		if ended := c.take(); len(ended) != 1 || ended[0].err != nil {
			t.Errorf("ended are %v", ended)
		}
	})
}

type closed struct {
	io.Reader
	isClosed bool
}

// Close implements io.Closer.
func (c *closed) Close() error {
	c.isClosed = true
	return nil
}
