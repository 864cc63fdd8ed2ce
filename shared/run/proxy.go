package run

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

// uploadSlack is the time for the rest of a body after the deadline. http.Transport waits for the body regardless of
// the deadline, and a stalled client must not block it.
const uploadSlack = time.Second

// pass forwards a request to its function, and streams both bodies. The function limits the size of the body.
func (g *gateway) pass(w http.ResponseWriter, r *http.Request, client http.RoundTripper) {
	began, function := time.Now(), g.function(r.URL)
	ctx, cancel := context.WithTimeout(httpx.TakeRequestID(r), g.limit())
	defer cancel()
	r = r.WithContext(ctx) // a copy: net/http looks at the body of its own
	upload := httpx.ReadBy(w, r, began.Add(g.limit()+uploadSlack))
	r.Body = body{r.Body}
	r.Header.Del("Upgrade") // a tunnel has no time limit and cannot be drained

	row := domain.Request{Function: function, Method: r.Method, Path: httpx.Path(r)}
	fail := func(err error) error {
		err = httpx.LogFailure(ctx, function, classify(ctx, function, err))
		problem := httpx.NewProblem(err)
		row.Status, row.Code = problem.Status, string(problem.Code)
		return err
	}
	proxy := httputil.ReverseProxy{
		Transport: client,
		Rewrite:   func(p *httputil.ProxyRequest) { rewrite(p, g.services[function]) },
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			err = fail(err)
			if upload.End(w.Header()); ctx.Err() != nil {
				w.Header().Set("Connection", "close")
			}
			httpx.WriteError(w, r, err)
		},
		ErrorLog: log.New(io.Discard, "", 0), // an answer that breaks off has its line here
	}
	sent := &answer{}
	proxy.ModifyResponse = func(resp *http.Response) error {
		if err := foreign(resp, function, httpx.RequestID(ctx)); err != nil {
			return err
		}
		resp.Header.Set("X-Request-Id", httpx.RequestID(ctx))
		upload.End(resp.Header)
		row.Status, sent.ReadCloser, resp.Body = resp.StatusCode, resp.Body, sent
		return nil
	}
	whole := false
	defer func() {
		// the proxy panics, which ends the connection: the client must not take half an answer for a whole one
		if !whole {
			_ = fail(cmp.Or(sent.err, errors.New("the answer could not be sent")))
		}
		row.Duration = time.Since(began)
		httpx.LogRequest(ctx, row)
		if whole {
			upload.Linger()
		}
	}()
	proxy.ServeHTTP(w, r)
	whole = true
}

// rewrite addresses a request to a function's service. Path and query stay as they are, even malformed, but bytes that
// no URL may have are percent-encoded.
func rewrite(p *httputil.ProxyRequest, service *url.URL) {
	in := p.In.URL
	p.Out.URL = &url.URL{
		Scheme: service.Scheme, Host: service.Host, Path: in.Path, RawPath: in.RawPath, RawQuery: in.RawQuery,
		ForceQuery: in.ForceQuery,
	}
	p.Out.Host = service.Host // Knative routes by it
	p.Out.Header.Set("X-Request-Id", httpx.RequestID(p.In.Context()))
	httpx.SendOnce(p.Out.Header)
	// The headers of an ingress stay, with the peer added. They are untrusted hints.
	p.Out.Header["X-Forwarded-For"] = p.In.Header["X-Forwarded-For"]
	p.SetXForwarded()
	for _, name := range []string{"X-Forwarded-Host", "X-Forwarded-Proto"} {
		if given, ok := p.In.Header[name]; ok {
			p.Out.Header[name] = given
		}
	}
	forwarded(p)
}

// forwarded repeats host and proto in the header Forwarded (RFC 7239): an ingress inside the cluster may overwrite
// X-Forwarded-Host and -Proto.
func forwarded(p *httputil.ProxyRequest) {
	host, _, _ := strings.Cut(p.Out.Header.Get("X-Forwarded-Host"), ",")
	proto, _, _ := strings.Cut(p.Out.Header.Get("X-Forwarded-Proto"), ",")
	p.Out.Header.Set("Forwarded",
		"host="+strconv.Quote(strings.TrimSpace(host))+";proto="+strconv.Quote(strings.TrimSpace(proto)))
}

// body is the client's body. Its errors are the client's, not the function's.
type body struct{ io.ReadCloser }

// Read implements io.Reader.
func (b body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	_, network := errors.AsType[*net.OpError](err)
	switch {
	case err == nil || errors.Is(err, io.EOF):
		return n, err
	case errors.Is(err, os.ErrDeadlineExceeded):
		return n, apperr.Wrap(apperr.Timeout, err, "the body did not come in time")
	case network || errors.Is(err, io.ErrUnexpectedEOF):
		return n, apperr.Wrap(apperr.ClientGone, err, "the client hung up")
	}
	return n, apperr.Wrap(apperr.Invalid, err, "the body could not be read")
}

// answer is a function's body. It records why it broke off.
type answer struct {
	io.ReadCloser
	err error
}

// Read implements io.Reader.
func (a *answer) Read(p []byte) (int, error) {
	n, err := a.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		a.err = err
	}
	return n, err
}
