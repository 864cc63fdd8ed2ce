package run

import (
	"errors"
	"io"
	"net/http"
	"sync"

	"github.com/cloudfn/cloudfn/shared/httpx"
)

// Functions reaches the functions that serve HTTP.
type Functions struct {
	all    []function
	alone  bool                                      // the process serves one function only
	own    func() http.Handler                       // the process's own API
	client func(http.RoundTripper) http.RoundTripper // tracing; nil = none
}

// At returns a transport to the functions at upstream, or to those of this process without an upstream. A request needs
// a path and, in its context, a request id. Errors have codes: Unavailable promises that nothing was done.
func (f Functions) At(variable string, upstream Upstream) (http.RoundTripper, error) {
	switch {
	case upstream != "":
	case f.alone:
		return nil, errors.New(variable + " is empty: set it to the URL of the functions, which this process does " +
			"not serve")
	default:
		return inside{f.own}, nil
	}
	directory, err := newDirectory(f.all, upstream)
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
	// Knative routes by it
	r.URL.Scheme, r.URL.Host, r.Host = o.services[function].Scheme, o.services[function].Host, ""
	httpx.SendOnce(r.Header)
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

// inside calls the process's own API without HTTP: a process need not know its own address.
type inside struct{ own func() http.Handler }

// RoundTrip implements http.RoundTripper.
func (i inside) RoundTrip(r *http.Request) (*http.Response, error) {
	r = identified(r)
	if r.Body == nil {
		r.Body = http.NoBody
	}
	body, sent := io.Pipe()
	w := &answering{header: http.Header{}, begun: make(chan *http.Response, 1), body: sent}
	go func() {
		err := errors.New("the function broke off")
		defer func() {
			_ = recover() // the edge has logged it; the reader gets an error
			w.WriteHeader(http.StatusBadGateway)
			_ = sent.CloseWithError(err)
		}()
		i.own().ServeHTTP(w, r)
		err = nil
	}()
	resp := <-w.begun
	resp.Body, resp.Request = body, r
	return resp, nil
}

// identified returns a copy of the request with its id in the header.
func identified(r *http.Request) *http.Request {
	r = r.Clone(r.Context())
	r.Header.Set("X-Request-Id", httpx.RequestID(r.Context()))
	return r
}

// answering is an answer while its body is being read.
type answering struct {
	header http.Header
	begun  chan *http.Response
	once   sync.Once
	body   *io.PipeWriter
}

// Header implements http.ResponseWriter.
func (w *answering) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter.
func (w *answering) WriteHeader(status int) {
	w.once.Do(func() { w.begun <- &http.Response{StatusCode: status, Header: w.header.Clone(), ContentLength: -1} })
}

// Write implements http.ResponseWriter.
func (w *answering) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(b)
}
