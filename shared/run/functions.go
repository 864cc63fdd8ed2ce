package run

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"

	"github.com/cloudfn/cloudfn/shared/httpx"
)

// Functions is the way from a function to those that serve HTTP.
type Functions struct {
	alone  bool                                      // the process serves one function only
	own    func() http.Handler                       // the process's own API
	client func(http.RoundTripper) http.RoundTripper // tracing; nil = none
}

// At is the way to functions that run one by one, or, without an upstream, to those of this process. A request needs a path, and
// in its context the request id. An error has a code: Unavailable promises that nothing was done.
func (f Functions) At(variable string, upstream Upstream) (http.RoundTripper, error) {
	switch {
	case upstream != "":
	case f.alone:
		return nil, errors.New(variable + " is empty: it must say where the functions are, because none of them is in this process")
	default:
		return inside{f.own}, nil
	}
	directory, err := newDirectory(context.Background(), registry, upstream)
	if err != nil {
		return nil, err
	}
	o := outside{directory, toFunctions()}
	if f.client != nil {
		o.client = f.client(o.client)
	}
	return o, nil
}

// outside sends a request to the service of its function.
type outside struct {
	directory
	client http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (o outside) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, function := r.Context(), o.function(r.URL)
	r = identified(r)
	r.URL.Scheme, r.URL.Host, r.Host = o.services[function].Scheme, o.services[function].Host, "" // Knative routes by it
	resp, err := o.client.RoundTrip(r)
	if err != nil {
		return nil, classify(ctx, function, err)
	}
	if err := foreign(resp, function, httpx.RequestID(ctx)); err != nil {
		_ = resp.Body.Close()
		return nil, err
	}
	return resp, nil
}

// inside has the process's own API answer, without a detour through HTTP: a process need not know its own address.
type inside struct{ own func() http.Handler }

// RoundTrip implements http.RoundTripper.
func (i inside) RoundTrip(r *http.Request) (*http.Response, error) {
	r = identified(r)
	if r.Body == nil {
		r.Body = http.NoBody
	}
	w := &whole{resp: http.Response{Header: http.Header{}, Request: r}}
	i.own().ServeHTTP(w, r)
	w.resp.Body, w.resp.ContentLength = io.NopCloser(&w.body), int64(w.body.Len())
	return &w.resp, nil
}

// identified is a copy of a request that carries its id.
func identified(r *http.Request) *http.Request {
	r = r.Clone(r.Context())
	r.Header.Set("X-Request-Id", httpx.RequestID(r.Context()))
	return r
}

// whole is an answer that is kept.
type whole struct {
	resp http.Response
	body bytes.Buffer
}

// Header implements http.ResponseWriter.
func (w *whole) Header() http.Header { return w.resp.Header }

// WriteHeader implements http.ResponseWriter.
func (w *whole) WriteHeader(status int) { w.resp.StatusCode = status }

// Write implements http.ResponseWriter.
func (w *whole) Write(b []byte) (int, error) { return w.body.Write(b) }
