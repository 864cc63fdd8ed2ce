// Package api calls cloudfn. Its types are made of the OpenAPI file by `make generate`.
package api

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// Client calls one cloudfn with one user's token.
type Client struct {
	base  string
	token TokenFunc
	http  http.Client
}

// TokenFunc gives the user's token. renew says that the one before was refused.
type TokenFunc func(ctx context.Context, renew bool) (domain.Secret, error)

// New prepares a Client of a base URL, or of one with Placeholder for the function's name. roots is who is trusted (nil = whom
// the system trusts), and debug is told of each request (nil = nobody).
func New(base string, token TokenFunc, roots *x509.CertPool, debug Debug) (*Client, error) {
	u, err := url.Parse(strings.ReplaceAll(base, Placeholder, "function"))
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("the URL of cloudfn is %q: give one such as https://cloudfn.example.com or http://%s.cloudfn.example.com by --url or CLOUDFN_URL", base, Placeholder)
	}
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: (&net.Dialer{Timeout: 10 * time.Second}).DialContext, ForceAttemptHTTP2: true,
		TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, TLSHandshakeTimeout: 10 * time.Second, MaxIdleConnsPerHost: 8,
	}
	return &Client{base: base, token: token, http: http.Client{
		Transport: debug.Wrap(transport),
		// A redirect would carry X-Auth-Token to whatever host it names.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// Placeholder stands for a function's name in a base URL.
const Placeholder = "{function}"

// maxAnswer is more than any answer of ours has.
const maxAnswer = 64 << 20

// Answer is what came, for those who want more than its body.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// functions are those whose paths do not begin with their name.
var functions = map[string]string{"requests": "stats", "status": "stats", "openapi.yaml": "stats"}

// url is the address of a path, which begins with /v1/.
func (c *Client) url(path string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(path, "/v1/"), "/")
	name, _, _ = strings.Cut(name, "?")
	return strings.TrimSuffix(strings.ReplaceAll(c.base, Placeholder, cmp.Or(functions[name], name)), "/") + path
}

// Get reads a path with its query into a value; nil leaves the body unread into any.
func (c *Client) Get(ctx context.Context, path string, query url.Values, into any) (Answer, error) {
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	return c.Do(ctx, http.MethodGet, path, nil, into)
}

// Do sends a request, with body as its JSON (nil = none), and reads the answer into a value (nil = not). What is not a success is
// an *Error. When the token is refused another one is asked for, once: nothing was done then.
func (c *Client) Do(ctx context.Context, method, path string, body, into any) (Answer, error) {
	var sent []byte
	if body != nil {
		var err error
		if sent, err = json.Marshal(body); err != nil {
			return Answer{}, err
		}
	}
	answer, err := c.twice(ctx, method, path, "application/json", sent)
	if err != nil || into == nil || len(answer.Body) == 0 {
		return answer, err
	}
	if err := json.Unmarshal(answer.Body, into); err != nil {
		return answer, fmt.Errorf("%s gave what is not in its description: %w", c.url(path), err)
	}
	return answer, nil
}

// GetAs reads a path in a representation of its own, such as image/svg+xml.
func (c *Client) GetAs(ctx context.Context, path string, query url.Values, accept string) (Answer, error) {
	return c.twice(ctx, http.MethodGet, path+"?"+query.Encode(), accept, nil)
}

// CopyAs copies a path in a representation of its own, of whatever length, as it comes. What is not whole is an error.
func (c *Client) CopyAs(ctx context.Context, w io.Writer, path string, query url.Values, accept string) error {
	open := func(renew bool) (*http.Response, error) { return c.open(ctx, path+"?"+query.Encode(), accept, renew) }
	resp, err := open(false)
	if refused, ok := errors.AsType[*Error](err); ok && refused.Status == http.StatusUnauthorized {
		resp, err = open(true)
	}
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	from := &reading{Reader: resp.Body}
	if _, err = io.Copy(w, from); from.err != nil {
		return away(resp.Request, from.err)
	}
	return err
}

// reading remembers what went wrong with what is read, to tell that from what went wrong with writing it.
type reading struct {
	io.Reader
	err error
}

// Read implements io.Reader.
func (r *reading) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		r.err = err
	}
	return n, err
}

// open sends a GET and gives a success with its body unread.
func (c *Client) open(ctx context.Context, path, accept string, renew bool) (*http.Response, error) {
	token, err := c.token(ctx, renew)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url(path), http.NoBody)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", accept)
	req.Header.Set("User-Agent", "cloudfn")
	if token != "" {
		req.Header.Set("X-Auth-Token", token.Reveal())
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, away(req, err)
	}
	if resp.StatusCode < 300 {
		return resp, nil
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, away(req, err)
	}
	return nil, newError(Answer{Status: resp.StatusCode, Header: resp.Header, Body: text})
}

// twice sends a request once more with another token when the first one is refused.
func (c *Client) twice(ctx context.Context, method, path, accept string, body []byte) (Answer, error) {
	answer, err := c.once(ctx, method, path, accept, body, false)
	if refused, ok := errors.AsType[*Error](err); ok && refused.Status == http.StatusUnauthorized {
		return c.once(ctx, method, path, accept, body, true)
	}
	return answer, err
}

func (c *Client) once(ctx context.Context, method, path, accept string, body []byte, renew bool) (Answer, error) {
	token, err := c.token(ctx, renew)
	if err != nil {
		return Answer{}, err
	}
	req, err := http.NewRequestWithContext(ctx, method, c.url(path), bytes.NewReader(body))
	if err != nil {
		return Answer{}, err
	}
	req.Header.Set("Accept", accept)
	return c.send(req, token, body)
}

func (c *Client) send(req *http.Request, token domain.Secret, body []byte) (Answer, error) {
	req.Header.Set("User-Agent", "cloudfn")
	if token != "" {
		req.Header.Set("X-Auth-Token", token.Reveal())
	}
	if len(body) > 0 {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return Answer{}, away(req, err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return Answer{}, away(req, err)
	}
	answer := Answer{Status: resp.StatusCode, Header: resp.Header, Body: text}
	if resp.StatusCode >= 300 {
		return answer, newError(answer)
	}
	return answer, nil
}

// away says in one line why no answer came.
func away(req *http.Request, err error) error {
	if ctx := req.Context(); ctx.Err() != nil {
		return context.Cause(ctx)
	}
	host := req.URL.Scheme + "://" + req.URL.Host
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return &Error{Detail: fmt.Sprintf("%s cannot be reached (%v): is it running, and is --url or CLOUDFN_URL right?", host, op.Err)}
	}
	if inner, ok := errors.AsType[*url.Error](err); ok {
		err = inner.Err
	}
	return &Error{Detail: fmt.Sprintf("%s broke off: %v", host, err), Broke: true}
}
