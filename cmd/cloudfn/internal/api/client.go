// Package api calls cloudfn. `make generate` makes its types of the OpenAPI file.
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
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// Options say where cloudfn is, and who calls it.
type Options struct {
	URL    string    // a base URL, or one with Placeholder for the function's name
	CACert string    // file with the certificate authorities to trust; "" = the system's
	Token  TokenFunc // nil = requests carry no token
	Debug  Debug     // nil = nothing is shown
}

// TokenFunc gives the user's token. renew asks for another one, after cloudfn has rejected the last.
type TokenFunc func(ctx context.Context, renew bool) (domain.Secret, error)

// Client calls one cloudfn with one user's token.
type Client struct {
	options Options
	http    http.Client
	prepare func() error // checks the settings, once
}

// New makes a Client. Its first request reports what is wrong with the settings.
func New(options Options) *Client {
	c := &Client{options: options}
	// A redirect would carry X-Auth-Token to whatever host it names.
	c.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	c.prepare = sync.OnceValue(c.check)
	return c
}

// Placeholder stands for a function's name in a base URL.
const Placeholder = "{function}"

func (c *Client) check() error {
	base := c.options.URL
	u, err := url.Parse(strings.ReplaceAll(base, Placeholder, "function"))
	isHTTP := err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != ""
	if !isHTTP || u.RawQuery != "" || u.Fragment != "" {
		return exit.Usagef("the URL of cloudfn is %q: give one such as https://cloudfn.example.com or "+
			"http://%s.cloudfn.example.com by --url or CLOUDFN_URL", base, Placeholder)
	}
	roots, err := certificates(c.options.CACert)
	if err != nil {
		return err
	}
	c.http.Transport = c.options.Debug.Wrap(&http.Transport{
		Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 8,
		DialContext:         (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		TLSHandshakeTimeout: 10 * time.Second,
		TLSClientConfig:     &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
	})
	return nil
}

// certificates reads a file of certificate authorities; nil stands for the system's.
func certificates(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil //nolint:nilnil // the system's
	}
	pem, err := os.ReadFile(file) //nolint:gosec // the user names it
	if err != nil {
		return nil, exit.Usagef("CLOUDFN_CACERT: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, exit.Usagef("CLOUDFN_CACERT: %s holds no certificate", file)
	}
	return pool, nil
}

// functions serve paths that do not begin with their name.
var functions = map[string]string{
	"requests": "stats", "status": "stats", "openapi.yaml": "stats", "flavors": "managed",
}

// url is the address of a path, which begins with /v1/.
func (c *Client) url(path string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(path, "/v1/"), "/")
	name, _, _ = strings.Cut(name, "?")
	base := strings.ReplaceAll(c.options.URL, Placeholder, cmp.Or(functions[name], name))
	return strings.TrimSuffix(base, "/") + path
}

func withQuery(path string, query url.Values) string {
	if len(query) == 0 {
		return path
	}
	return path + "?" + query.Encode()
}

// Do sends a request with body as its JSON (nil = none), and reads the answer into a value (nil = not at all).
func (c *Client) Do(ctx context.Context, method, path string, body, into any) error {
	return c.do(ctx, request{method: method, path: path}, body, into)
}

// request is what is sent besides the token.
type request struct {
	method, path string
	accept       string // "" = JSON
	ifMatch      string // a version, or Absent; "" = Any
	body         []byte
}

type keyOf struct{}

// WithKey returns a context whose requests have one Idempotency-Key: cloudfn does them once.
func WithKey(ctx context.Context) context.Context {
	return context.WithValue(ctx, keyOf{}, uuid.NewString())
}

func (c *Client) do(ctx context.Context, r request, body, into any) (err error) {
	if body != nil {
		if r.body, err = json.Marshal(body); err != nil {
			return err
		}
	}
	resp, err := c.send(ctx, r)
	if err != nil {
		return err
	}
	if versioned, ok := into.(interface{ setETag(etag string) }); ok {
		versioned.setETag(resp.Header.Get("ETag"))
	}
	text, err := readAll(resp)
	if err != nil || into == nil || len(text) == 0 {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("%s gave an answer that its description does not allow: %w", c.url(r.path), err)
	}
	return nil
}

// Copy writes a path in another representation, such as text/csv, of whatever length. It fails unless it got all of it.
func (c *Client) Copy(ctx context.Context, w io.Writer, path string, query url.Values, accept string) error {
	resp, err := c.send(ctx, request{method: http.MethodGet, path: withQuery(path, query), accept: accept})
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	from := &reader{Reader: resp.Body}
	if _, err = io.Copy(w, from); from.err != nil {
		return noAnswer(resp.Request, from.err)
	}
	return err
}

// reader keeps the error of reading, so that Copy can tell it from one of writing.
type reader struct {
	io.Reader
	err error
}

// Read implements io.Reader.
func (r *reader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		r.err = err
	}
	return n, err
}

// send gives a successful answer, whose body the caller closes. Any other answer is an *Error. When cloudfn rejects the
// token, or the request because of a limit, it has done nothing: send tries another token once, and waits as it is
// asked to, patience in all.
func (c *Client) send(ctx context.Context, r request) (*http.Response, error) {
	end := time.Now().Add(patience)
	for renew, renewed := false, false; ; {
		resp, err := c.attempt(ctx, r, renew)
		e, isAnswer := errors.AsType[*Error](err)
		renew = isAnswer && e.Status == http.StatusUnauthorized && !renewed
		renewed = renewed || renew
		isLimited := isAnswer && e.Status == http.StatusTooManyRequests
		if !renew && (!isLimited || !pause(ctx, e.RetryAfter, end)) {
			return resp, err
		}
	}
}

// patience bounds the pauses before one request that a limit rejects.
const patience = time.Minute

// pause waits for so many seconds, unless they end after end. It reports whether it did.
func pause(ctx context.Context, seconds string, end time.Time) bool {
	n, err := strconv.Atoi(seconds)
	wait := time.Duration(n) * time.Second
	if err != nil || time.Now().Add(wait).After(end) {
		return false
	}
	select {
	case <-time.After(wait):
		return true
	case <-ctx.Done():
		return false
	}
}

func (c *Client) attempt(ctx context.Context, r request, renew bool) (*http.Response, error) {
	if err := c.prepare(); err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, r.method, c.url(r.path), bytes.NewReader(r.body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", cmp.Or(r.accept, "application/json"))
	req.Header.Set("User-Agent", "cloudfn")
	if key, isKeyed := ctx.Value(keyOf{}).(string); isKeyed {
		req.Header.Set("Idempotency-Key", key)
	}
	if len(r.body) > 0 {
		req.Header.Set("Content-Type", "application/json")
	}
	switch r.ifMatch {
	case "", Any:
	case Absent:
		req.Header.Set("If-None-Match", "*")
	default:
		req.Header.Set("If-Match", r.ifMatch)
	}
	if c.options.Token != nil {
		token, err := c.options.Token(ctx, renew)
		if err != nil {
			return nil, err
		}
		req.Header.Set("X-Auth-Token", token.Reveal())
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, noAnswer(req, err)
	}
	if resp.StatusCode < http.StatusMultipleChoices {
		return resp, nil
	}
	text, err := readAll(resp)
	if err != nil {
		return nil, err
	}
	return nil, newError(resp, text)
}

// maxAnswer is more than any answer of the API has, in bytes.
const maxAnswer = 64 << 20

func readAll(resp *http.Response) ([]byte, error) {
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, noAnswer(resp.Request, err)
	}
	return text, nil
}
