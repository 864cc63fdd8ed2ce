package openstack

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

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
