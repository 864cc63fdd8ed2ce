package console

import (
	"bytes"
	"context"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

// maxAnswer bounds what a function answers: a page of 1000 servers has 2 MB.
const maxAnswer = 32 << 20

// requestHeaders are forwarded, beside the method, the path and the body. Cookies and other headers that identify the
// sender are not.
var requestHeaders = []string{"Accept", "Content-Type", "Idempotency-Key", "If-Match", "If-None-Match"}

// answerHeaders are returned, beside the status and the body. The edge sets the request's id, which is the same.
var answerHeaders = []string{
	"Allow", "Cache-Control", "Content-Disposition", "Content-Security-Policy", "ETag", "Idempotency-Replayed",
	"Last-Modified", "Link", "Location", "RateLimit", "RateLimit-Policy", "Retry-After", "Vary", "WWW-Authenticate",
}

// proxy sends a request of the page to the function that serves its path, with the session's token.
func (h handler) proxy(r *http.Request) (httpx.Response, error) {
	if err := checkPage(r); err != nil {
		return httpx.Response{}, err
	}
	target, err := targetOf(r.URL)
	if err != nil {
		return httpx.Response{}, err
	}
	session, err := h.svc.Open(r.Context(), cookieOf(r), isUse(r))
	if err != nil {
		return httpx.Response{}, err
	}
	if err := checkUser(r, session.Who); err != nil {
		return httpx.Response{}, err
	}
	body, err := httpx.Bytes(r)
	if err != nil {
		return httpx.Response{}, err
	}
	//nolint:gosec // the URL is only a path
	out, err := http.NewRequestWithContext(r.Context(), r.Method, target.String(), bytes.NewReader(body))
	if err != nil {
		return httpx.Response{}, apperr.Wrap(apperr.Invalid, err, "the request cannot be forwarded")
	}
	for _, name := range requestHeaders {
		if values := r.Header.Values(name); len(values) > 0 {
			out.Header[name] = values
		}
	}
	out.Header.Set("X-Auth-Token", session.Token.Reveal())
	out.RemoteAddr = httpx.ClientAddress(r.Context()) // for a function in this process, and for one elsewhere:
	out.Header.Set("X-Forwarded-For", out.RemoteAddr)
	resp, err := h.functions.RoundTrip(out)
	if err != nil {
		return httpx.Response{}, err
	}
	if isExport(resp) {
		return stream(resp), nil
	}
	defer func() { _ = resp.Body.Close() }()
	return answer(resp)
}

func answer(resp *http.Response) (httpx.Response, error) {
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return httpx.Response{}, apperr.Wrap(apperr.BadGateway, err, "the function's answer is incomplete")
	case len(body) > maxAnswer:
		return httpx.Response{}, apperr.New(apperr.BadGateway,
			"the function's answer is larger than %d bytes", maxAnswer)
	}
	out := head(resp)
	out.Body = body
	return out, nil
}

// isExport reports whether an answer may be of any length.
func isExport(resp *http.Response) bool {
	kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	return err == nil && resp.StatusCode == http.StatusOK && (kind == "text/csv" || kind == "application/x-ndjson")
}

// stream forwards an answer while it is read.
func stream(resp *http.Response) httpx.Response {
	out := head(resp)
	out.Stream = func(_ context.Context, w io.Writer) error {
		defer func() { _ = resp.Body.Close() }()
		_, err := io.Copy(w, resp.Body)
		return err
	}
	if resp.Request != nil && resp.Request.Method == http.MethodHead {
		_ = resp.Body.Close()
	}
	return out
}

// head is an answer without its body.
func head(resp *http.Response) httpx.Response {
	out := httpx.Response{Status: resp.StatusCode, Header: http.Header{}, Relayed: true}
	out.ContentType = resp.Header.Get("Content-Type")
	for _, name := range answerHeaders {
		if values := resp.Header.Values(name); len(values) > 0 {
			out.Header[http.CanonicalHeaderKey(name)] = values
		}
	}
	return out
}

// targetOf is the path at the function. Only the API can be reached: no events, and no routes of agents, which have
// their own tokens.
func targetOf(u *url.URL) (*url.URL, error) {
	escaped, _ := strings.CutPrefix(u.EscapedPath(), apiPath)
	path, err := url.PathUnescape(escaped)
	parts := strings.SplitN(escaped, "/", 4)
	if err != nil || len(parts) < 3 || parts[0] != "" || parts[1] != "v1" {
		return nil, noSuchPath()
	}
	if name, err := url.PathUnescape(parts[2]); err != nil || name == "agents" {
		return nil, noSuchPath()
	}
	return &url.URL{Path: path, RawPath: escaped, RawQuery: u.RawQuery, ForceQuery: u.ForceQuery}, nil
}

func noSuchPath() error {
	return apperr.New(apperr.NotFound, "there is nothing at this path; the console reaches the API at "+apiPath+"/v1/")
}
