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

// What is passed on of a request, besides its method, its path and its body. Cookies and whatever else would say who it is from
// stay here.
var requestHeaders = []string{"Accept", "Content-Type"}

// What is passed on of an answer, besides its status and its body. The request's id is set by the edge: it is the same.
var answerHeaders = []string{
	"Allow", "Cache-Control", "Content-Disposition", "Content-Security-Policy", "ETag", "Last-Modified", "Link", "Location",
	"Retry-After", "Vary", "WWW-Authenticate",
}

// relay sends a request of the page to the function whose path it is, with the session's token, and gives its answer back.
func (h handler) relay(r *http.Request) (httpx.Response, error) {
	if err := checkPage(r); err != nil {
		return httpx.Response{}, err
	}
	target, err := targetOf(r.URL)
	if err != nil {
		return httpx.Response{}, err
	}
	session, err := h.svc.Open(r.Context(), cookieOf(r))
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
	out, err := http.NewRequestWithContext(r.Context(), r.Method, target.String(), bytes.NewReader(body)) //nolint:gosec // it has no host: functions knows where it goes
	if err != nil {
		return httpx.Response{}, apperr.Wrap(apperr.Invalid, err, "the request cannot be passed on")
	}
	for _, name := range requestHeaders {
		if values := r.Header.Values(name); len(values) > 0 {
			out.Header[name] = values
		}
	}
	out.Header.Set("X-Auth-Token", session.Token.Reveal())
	out.RemoteAddr = r.RemoteAddr // for a function in this process
	resp, err := h.functions.RoundTrip(out)
	if err != nil {
		return httpx.Response{}, err
	}
	if isExport(resp) {
		return passed(resp), nil
	}
	defer func() { _ = resp.Body.Close() }()
	return answer(resp)
}

func answer(resp *http.Response) (httpx.Response, error) {
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return httpx.Response{}, apperr.Wrap(apperr.BadGateway, err, "the function broke off")
	case len(body) > maxAnswer:
		return httpx.Response{}, apperr.New(apperr.BadGateway, "the function's answer is larger than %d bytes", maxAnswer)
	}
	out := head(resp)
	out.Body = body
	return out, nil
}

// isExport says whether an answer may be of any length.
func isExport(resp *http.Response) bool {
	kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	return err == nil && resp.StatusCode == http.StatusOK && (kind == "text/csv" || kind == "application/x-ndjson")
}

// passed is an answer that is passed on as it comes.
func passed(resp *http.Response) httpx.Response {
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

// targetOf is the path at the function. There is nothing but the API: no events, and not what agents fetch with tokens of their own.
func targetOf(u *url.URL) (*url.URL, error) {
	escaped, _ := strings.CutPrefix(u.EscapedPath(), apiPath)
	path, err := url.PathUnescape(escaped)
	parts := strings.SplitN(escaped, "/", 4)
	if err != nil || len(parts) < 3 || parts[0] != "" || parts[1] != "v1" {
		return nil, nothingThere()
	}
	if name, err := url.PathUnescape(parts[2]); err != nil || name == "agents" {
		return nil, nothingThere()
	}
	return &url.URL{Path: path, RawPath: escaped, RawQuery: u.RawQuery, ForceQuery: u.ForceQuery}, nil
}

func nothingThere() error {
	return apperr.New(apperr.NotFound, "there is nothing at this path; the console reaches the API at "+apiPath+"/v1/")
}
