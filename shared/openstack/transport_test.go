package openstack

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// step is what the network does at one try.
type step struct {
	status int // 0 = the connection is reset
	header map[string]string
}

const (
	hangs     = -1 // a status of step: there is no answer in time
	noConnect = -2 // there is no connection in time
)

// play answers each try with the next step, the last one forever, and counts the bodies that were not closed.
func play(steps ...step) (rt http.RoundTripper, tries, open *atomic.Int64) {
	tries, open = &atomic.Int64{}, &atomic.Int64{}
	return roundTripper(func(*http.Request) (*http.Response, error) {
		n := int(tries.Add(1))
		s := steps[min(n, len(steps))-1]
		switch s.status {
		case 0:
			return nil, syscall.ECONNRESET
		case hangs:
			return nil, timeout{}
		case noConnect:
			return nil, &net.OpError{Op: "dial", Err: timeout{}}
		}
		resp := response(s.status, s.header, "")
		open.Add(1)
		resp.Body = &counted{resp.Body, open}
		return resp, nil
	}), tries, open
}

type counted struct {
	io.ReadCloser
	open *atomic.Int64
}

// Close counts.
func (c *counted) Close() error {
	c.open.Add(-1)
	return c.ReadCloser.Close()
}

func TestRetries(t *testing.T) {
	t.Parallel()
	after := func(s string) map[string]string { return map[string]string{"Retry-After": s} }
	for name, tc := range map[string]struct {
		method      string
		steps       []step
		deadline    time.Duration
		tries       int64
		status      int // 0 = an error
		least, most time.Duration
	}{
		"a read, 503 twice": {
			"GET",
			[]step{{503, nil}, {503, nil}, {200, nil}},
			0, 3, 200, 300 * time.Millisecond,
			600 * time.Millisecond,
		},
		"a read, resets": {
			"GET", []step{{}, {}, {200, nil}}, 0, 3, 200, 300 * time.Millisecond, 600 * time.Millisecond,
		},
		"HEAD too": {
			"HEAD",
			[]step{{502, nil}, {504, nil}, {200, nil}},
			0, 3, 200, 300 * time.Millisecond,
			600 * time.Millisecond,
		},
		"given up": {
			"GET", []step{{503, nil}}, 0, 3, 503, 300 * time.Millisecond, 600 * time.Millisecond,
		},
		"given up, resets": {"GET", []step{{}}, 0, 3, 0, 300 * time.Millisecond, 600 * time.Millisecond},
		"no connection in time": {
			"GET", []step{{noConnect, nil}, {200, nil}}, 0, 2, 200, 100 * time.Millisecond, 200 * time.Millisecond,
		},
		"no answer in time":  {"GET", []step{{hangs, nil}, {200, nil}}, 0, 1, 0, 0, 0},
		"a fault of its own": {"GET", []step{{500, nil}}, 0, 1, 500, 0, 0},
		"a refusal":          {"GET", []step{{404, nil}}, 0, 1, 404, 0, 0},
		"a redirect":         {"GET", []step{{302, nil}}, 0, 1, 302, 0, 0},
		"POST":               {"POST", []step{{503, nil}, {200, nil}}, 0, 1, 503, 0, 0},
		"POST, reset":        {"POST", []step{{}, {200, nil}}, 0, 1, 0, 0, 0},
		"PUT":                {"PUT", []step{{503, nil}, {200, nil}}, 0, 1, 503, 0, 0},
		"DELETE":             {"DELETE", []step{{503, nil}, {200, nil}}, 0, 1, 503, 0, 0},
		"429 with its pause": {
			"GET", []step{{429, after("1")}, {200, nil}}, 0, 2, 200, time.Second, time.Second,
		},
		"503 with its pause": {
			"GET", []step{{503, after("2")}, {200, nil}}, 0, 2, 200, 2 * time.Second, 2 * time.Second,
		},
		"too long a pause": {"GET", []step{{503, after("3")}, {200, nil}}, 0, 1, 503, 0, 0},
		"an hour":          {"GET", []step{{429, after("3600")}, {200, nil}}, 0, 1, 429, 0, 0},
		"a pause that is no number": {
			"GET",
			[]step{{503, after("Wed, 21 Oct 2026 07:28:00 GMT")}, {200, nil}},
			0, 2, 200,
			100 * time.Millisecond, 200 * time.Millisecond,
		},
		"a pause of less than none": {
			"GET", []step{{503, after("-5")}, {200, nil}}, 0, 2, 200, 100 * time.Millisecond, 200 * time.Millisecond,
		},
		"too late for another try": {
			"GET", []step{{503, after("1")}, {200, nil}}, 900 * time.Millisecond, 1, 503, 0, 0,
		},
		"time for another try": {
			"GET", []step{{503, after("1")}, {200, nil}}, 1100 * time.Millisecond, 2, 200, time.Second, time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				network, tries, open := play(tc.steps...)
				rt := newTransport(nil, Options{Wrap: func(http.RoundTripper) http.RoundTripper { return network }})
				ctx := t.Context()
				if tc.deadline > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, tc.deadline)
					defer cancel()
				}
				req, err := http.NewRequestWithContext(ctx, tc.method, "http://nova/x", nil)
				if err != nil {
					t.Fatal(err)
				}
				began, status := time.Now(), 0
				resp, err := rt.RoundTrip(req)
				if err == nil {
					status = resp.StatusCode
					_ = resp.Body.Close()
				}
				if took := time.Since(began); tries.Load() != tc.tries || status != tc.status || took < tc.least ||
					took > tc.most {
					t.Errorf("got %d %v after %d tries and %s", status, err, tries.Load(), took)
				}
				if open.Load() != 0 {
					t.Errorf("%d bodies were not closed", open.Load())
				}
			})
		})
	}
}

// TestACellHangs: Nova answers without the cell after its own 60 s, and that answer is waited for. Should Nova hang
// itself, it is called once. The wait is shortened here, because a test cannot take a minute and a half.
func TestACellHangs(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	s.mux.HandleFunc("GET /compute/servers/id", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	var waits time.Duration
	cloud, err := New(Config{AuthURL: s.url, Interface: "public"},
		Options{Wrap: func(rt http.RoundTripper) http.RoundTripper {
			plain := rt.(*http.Transport)
			waits, plain.ResponseHeaderTimeout = plain.ResponseHeaderTimeout, 100*time.Millisecond
			return plain
		}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cloud.Close)
	if waits < 60*time.Second+20*time.Second {
		t.Errorf("it waits %s, and Nova 60 s for a cell", waits)
	}
	if err := read(t.Context(), cloud.As(theToken, "p1")); apperr.CodeOf(err) != apperr.Timeout ||
		len(s.to("/compute/servers/id")) != 1 {
		t.Errorf("%v after %d calls", err, len(s.to("/compute/servers/id")))
	}
}

// TestRetryEndsWithItsContext in the middle of a pause.
func TestRetryEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		network, tries, open := play(step{503, map[string]string{"Retry-After": "2"}})
		rt := newTransport(nil, Options{Wrap: func(http.RoundTripper) http.RoundTripper { return network }})
		ctx, hangUp := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, hangUp)
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://nova/x", nil)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if _, err := rt.RoundTrip(req); !errors.Is(err, context.Canceled) || time.Since(began) != time.Second ||
			tries.Load() != 1 || open.Load() != 0 {
			t.Errorf("got %v after %s and %d tries", err, time.Since(began), tries.Load())
		}
	})
}

// TestRetryBudget: while OpenStack is down, retries are a fifth of the calls and a few; once it is back, there are
// more to spend again.
func TestRetryBudget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const calls = 500
		down, tries := true, 0
		rt := newTransport(nil, Options{Wrap: func(http.RoundTripper) http.RoundTripper {
			return roundTripper(func(*http.Request) (*http.Response, error) {
				tries++
				if down {
					return response(503, nil, ""), nil
				}
				return response(200, nil, ""), nil
			})
		}})
		call := func() {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://nova/x", nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := rt.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
		}
		for range calls {
			call()
		}
		if tries > calls*12/10+10 || tries < calls*12/10 {
			t.Errorf("%d calls made %d tries", calls, tries)
		}
		down = false
		for range 100 {
			call()
		}
		down, tries = true, 0
		call()
		if tries != maxTries {
			t.Errorf("after it was up again, a call made %d tries", tries)
		}
	})
}

// TestRedirectsAreNotFollowed: the token must not reach whatever a redirect names.
func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	thief := newStub(t)
	for _, status := range []int{301, 302, 303, 307, 308} {
		s := newStub(t)
		for _, pattern := range []string{"GET /compute/servers/id", "POST /compute/servers", "GET /v3/auth/tokens"} {
			s.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, thief.url+"/stolen", status)
			})
		}
		cloud := s.cloud(t, nil)
		session := cloud.As(theToken, "p1")
		_, validated := cloud.Validate(t.Context(), theToken)
		for call, err := range map[string]error{
			"read": read(t.Context(), session), "create": create(t.Context(), session), "validate": validated,
		} {
			if err == nil || strings.Contains(err.Error(), "stolen") {
				t.Errorf("%d, %s: got %v", status, call, err)
			}
		}
	}
	if n := len(thief.calls); n != 0 {
		t.Errorf("%d calls went to where the redirects led", n)
	}
}

// TestNetworkStatuses reads a torn connection off a real socket: 503 twice, then 200.
func TestNetworkStatuses(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	n := 0
	s.mux.HandleFunc("GET /compute/servers/id", func(w http.ResponseWriter, _ *http.Request) {
		if n++; n == 3 {
			_, _ = io.WriteString(w, `{"server":{"id":"id","name":"`+strconv.Itoa(n)+`"}}`)
			return
		}
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	got, err := s.session(t).Server(t.Context(), "id")
	if err != nil || got.Name != "3" || len(s.to("/compute/servers/id")) != 3 {
		t.Errorf("got %+v %v after %d calls", got, err, len(s.to("/compute/servers/id")))
	}
}

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
