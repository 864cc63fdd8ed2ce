package openstack

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// The limits of every call. The caller's deadline bounds a call as a whole.
const (
	dialTimeout   = 5 * time.Second
	headerTimeout = novaCellTimeout + 30*time.Second // Nova then answers without the cell
	// novaCellTimeout is how long Nova waits for a cell whose database does not answer (CELL_TIMEOUT in
	// nova/context.py).
	novaCellTimeout = 60 * time.Second
	// OpenStack's eventlet servers give every open connection one of a hundred or so green threads for as long
	// as it is open, so a copy that hoards idle ones keeps others out.
	idlePerHost  = 16
	idleTimeout  = 10 * time.Second
	maxBody      = 32 << 20 // a page of 1000 servers in detail has 2 MB
	maxRefusal   = 64 << 10 // gophercloud keeps it whole; what there is to say is in the first few hundred bytes
	maxTries     = 3
	firstPause   = 100 * time.Millisecond
	longestPause = 2 * time.Second
)

// newTransport is the one way to OpenStack: bounded in time and size, with retries for reads.
func newTransport(tlsConfig *tls.Config, opts Options) http.RoundTripper {
	plain := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}).DialContext,
		TLSClientConfig:       tlsConfig,
		TLSHandshakeTimeout:   dialTimeout,
		ResponseHeaderTimeout: headerTimeout,
		MaxIdleConnsPerHost:   idlePerHost,
		IdleConnTimeout:       idleTimeout,
		ForceAttemptHTTP2:     true,
	}
	var base http.RoundTripper = plain
	if opts.Wrap != nil {
		base = opts.Wrap(base)
	}
	if opts.InFlight > 0 {
		base = newBulkhead(base, opts.InFlight)
	}
	return &transport{base: base, idle: plain.CloseIdleConnections, requestID: opts.RequestID, budget: newBudget()}
}

type transport struct {
	base      http.RoundTripper
	idle      func()
	requestID func(context.Context) string
	budget    *budget
}

// CloseIdleConnections is what http.Client passes on.
func (t *transport) CloseIdleConnections() { t.idle() }

// RoundTrip sends the request, again if that is safe and may help: a read that met a reset, 429, 502, 503 or 504. A
// service that hangs gets no second request: it would hang once more. A write is never repeated here: its caller
// has to find out first what became of it.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	if t.requestID != nil {
		if id := t.requestID(req.Context()); id != "" {
			req.Header.Set("X-Openstack-Request-Id", id)
		}
	}
	t.budget.earn()
	for try := 1; ; try++ {
		resp, err := t.base.RoundTrip(req)
		pause, again := t.again(req, resp, err, try)
		if !again {
			return bounded(resp), err
		}
		if resp != nil {
			_ = resp.Body.Close()
		}
		select {
		case <-time.After(pause):
		case <-req.Context().Done():
			return nil, req.Context().Err()
		}
	}
}

func (t *transport) again(req *http.Request, resp *http.Response, err error, try int) (time.Duration, bool) {
	if try >= maxTries || req.Method != http.MethodGet && req.Method != http.MethodHead || req.Context().Err() != nil ||
		isHung(err) || errors.Is(err, apperr.ErrNotSent) {
		return 0, false
	}
	pause := firstPause << (try - 1)
	pause += rand.N(pause) //nolint:gosec // jitter needs no secrecy
	if err == nil {
		switch resp.StatusCode {
		case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable,
			http.StatusGatewayTimeout:
		default:
			return 0, false
		}
		if s, e := strconv.Atoi(resp.Header.Get("Retry-After")); e == nil {
			pause = max(pause, time.Duration(s)*time.Second)
		}
	}
	if deadline, ok := req.Context().Deadline(); ok && time.Until(deadline) < pause {
		return 0, false
	}
	return pause, pause <= longestPause && t.budget.spend()
}

// isHung reports whether a service took the request, or the connection, and did not answer in time.
func isHung(err error) bool {
	timeout, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err)
	dial, isDial := errors.AsType[*net.OpError](err)
	return ok && timeout.Timeout() && (!isDial || dial.Op != "dial")
}

// budget lets retries be a fifth of all calls at most, with a few in hand: when OpenStack is down, it is
// not also beaten.
type budget struct {
	mu    sync.Mutex
	coins float64
}

const (
	budgetFull = 10
	budgetRate = 0.2
)

func newBudget() *budget { return &budget{coins: budgetFull} }

func (b *budget) earn() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.coins = min(budgetFull, b.coins+budgetRate)
}

func (b *budget) spend() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.coins < 1 {
		return false
	}
	b.coins--
	return true
}

// errTooLarge stops a body that no honest service sends.
var errTooLarge = errors.New("the answer is too large")

func bounded(resp *http.Response) *http.Response {
	if resp != nil && resp.Body != nil {
		left := int64(maxBody)
		if resp.StatusCode >= http.StatusMultipleChoices {
			left = maxRefusal
		}
		resp.Body = newStorable(&boundedBody{ReadCloser: resp.Body, left: left})
	}
	return resp
}

type boundedBody struct {
	io.ReadCloser
	left int64
}

func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errTooLarge
	}
	n, err := b.ReadCloser.Read(p)
	b.left -= int64(n)
	return n, err
}

// permitWait is how long a call waits for its turn while Options.InFlight others are in flight to the same endpoint.
const permitWait = 5 * time.Second

// bulkhead bounds the calls in flight to each endpoint: a service that hangs keeps a caller's workers for 90 s a call,
// and must not take all of them. A call is in flight until its headers are there: a hanging service sends none, and
// a body that stalls ends by the caller's deadline.
type bulkhead struct {
	base      http.RoundTripper
	most      int
	mu        sync.Mutex
	endpoints map[string]*endpoint // as many as the catalogs list
}

// endpoint is the calls to a service.
type endpoint struct {
	permits chan struct{} // full: no more calls
	// hangs is set when a call has waited in vain, until the service answers. Calls without a permit do not wait then.
	hangs atomic.Bool
}

func newBulkhead(base http.RoundTripper, most int) *bulkhead {
	return &bulkhead{base: base, most: most, endpoints: map[string]*endpoint{}}
}

// RoundTrip implements http.RoundTripper. A call that gets no permit is Unavailable, and was not sent.
func (b *bulkhead) RoundTrip(req *http.Request) (*http.Response, error) {
	e := b.endpoint(req.URL)
	if err := e.acquire(req.Context(), req.URL.Host); err != nil {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, err
	}
	defer func() { <-e.permits }()
	resp, err := b.base.RoundTrip(req)
	if err == nil && !isUnanswered(resp.StatusCode) {
		e.hangs.Store(false)
	}
	return resp, err
}

// endpoint returns the calls to the service of a URL. Services that share a host differ by the first part of the path.
func (b *bulkhead) endpoint(u *url.URL) *endpoint {
	first, _, _ := strings.Cut(strings.TrimPrefix(u.Path, "/"), "/")
	key := u.Scheme + "://" + u.Host + "/" + first
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.endpoints[key] == nil {
		b.endpoints[key] = &endpoint{permits: make(chan struct{}, b.most)}
	}
	return b.endpoints[key]
}

func (e *endpoint) acquire(ctx context.Context, host string) error {
	select {
	case e.permits <- struct{}{}:
		return nil
	default:
	}
	if !e.hangs.Load() {
		timer := time.NewTimer(permitWait)
		defer timer.Stop()
		select {
		case e.permits <- struct{}{}:
			return nil
		case <-ctx.Done():
			return errors.Join(apperr.ErrNotSent, ctx.Err())
		case <-timer.C:
			e.hangs.Store(true)
		}
	}
	err := apperr.Wrap(apperr.Unavailable, apperr.ErrNotSent, "the service at %s does not answer: %d calls are waiting",
		host, cap(e.permits))
	err.RetryAfter = permitWait
	return err
}

// isUnanswered reports whether a status is a proxy's, whose service did not answer.
func isUnanswered(status int) bool {
	return status == http.StatusBadGateway || status == http.StatusServiceUnavailable ||
		status == http.StatusGatewayTimeout
}

// storable is the body of an answer in JSON. It replaces each escaped NUL by the replacement character: OpenStack takes
// a NUL in names, descriptions and metadata, and Postgres cannot store it. encoding/json replaces all else that is not
// text. The length stays.
type storable struct {
	in  *bufio.Reader
	out []byte // was read and is to be given out
	io.Closer
}

func newStorable(body io.ReadCloser) *storable {
	return &storable{in: bufio.NewReader(body), Closer: body}
}

const (
	escapedNUL         = `\u0000`
	escapedReplacement = `\ufffd`
)

// Read implements io.Reader.
func (s *storable) Read(p []byte) (n int, err error) {
	for n < len(p) {
		if len(s.out) == 0 && n > 0 && s.in.Buffered() == 0 {
			return n, nil // do not wait for more
		}
		if len(s.out) == 0 {
			if s.out, err = s.next(); err != nil {
				return n, err
			}
		}
		more := copy(p[n:], s.out)
		n, s.out = n+more, s.out[more:]
	}
	return n, nil
}

// next takes what precedes the next backslash, or else the escape that begins with it. It is valid until the next call.
func (s *storable) next() ([]byte, error) {
	if _, err := s.in.Peek(1); err != nil {
		return nil, err
	}
	text, _ := s.in.Peek(s.in.Buffered())
	end := bytes.IndexByte(text, '\\')
	switch {
	case end < 0:
		end = len(text)
	case end == 0:
		text, _ = s.in.Peek(len(escapedNUL)) // less at the end of the body
		if string(text) == escapedNUL {
			text, end = []byte(escapedReplacement), len(escapedNUL)
		} else {
			end = min(len(text), len(`\\`))
		}
	}
	_, err := s.in.Discard(end)
	return text[:end], err
}
