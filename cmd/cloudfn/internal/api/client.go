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
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
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

	NameField func(field string) string // what the user calls a field of a request; nil = as the API does
}

// TokenFunc gives the user's token. renew requests another one, after cloudfn has rejected the last.
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
		return nil, exit.Usagef("certificate authorities: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, exit.Usagef("certificate authorities: %s holds no certificate", file)
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
// token, or the request because of a limit, it has done nothing: send tries another token once, and waits as the
// answer says, limitTime in all.
func (c *Client) send(ctx context.Context, r request) (*http.Response, error) {
	end := time.Now().Add(limitTime)
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

// limitTime bounds the pauses before one request that a limit rejects.
const limitTime = time.Minute

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
	failure := newError(resp, text)
	failure.nameField = c.options.NameField
	return nil, failure
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

// Item is one thing: its JSON as the API gave it, and the fields that this client knows.
type Item[T any] struct {
	Value T
	Raw   json.RawMessage
	ETag  string // its version, when the answer is this one thing
}

func (i *Item[T]) setETag(etag string) { i.ETag = etag }

// UnmarshalJSON implements json.Unmarshaler.
func (i *Item[T]) UnmarshalJSON(text []byte) error {
	i.Raw = append(json.RawMessage(nil), text...)
	return json.Unmarshal(text, &i.Value)
}

// Get reads one thing.
func Get[T any](ctx context.Context, c *Client, path string, query url.Values) (Item[T], error) {
	return Send[T](ctx, c, http.MethodGet, withQuery(path, query), nil)
}

// Send sends a request with body as its JSON (nil = none). An answer without a body gives an empty Item.
func Send[T any](ctx context.Context, c *Client, method, path string, body any) (item Item[T], err error) {
	err = c.Do(ctx, method, path, body, &item)
	return item, err
}

// What SendIfMatch takes besides a version.
const (
	Absent = "absent" // the thing must not exist
	Any    = "any"    // whatever its version is
)

// SendIfMatch sends a request that fails if the version of the thing is another one by now. It sends nothing
// without a version: then the ETag of what was read has been lost on the way.
func SendIfMatch[T any](
	ctx context.Context, c *Client, method, path, etag string, body any,
) (item Item[T], err error) {
	if etag == "" {
		return item, errors.New("nothing was changed: the answer before had no ETag, so this could overwrite what " +
			"others change. A proxy before cloudfn drops it: it must let ETag and If-Match pass")
	}
	err = c.do(ctx, request{method: method, path: path, ifMatch: etag}, body, &item)
	return item, err
}

// largestPage is the most things that a page may hold.
const largestPage = 1000

const redacted = "[redacted]"

// secretHeaders and secretFields are never shown.
var (
	secretHeaders = []string{"X-Auth-Token", "X-Subject-Token", "Authorization", "Cookie", "Set-Cookie"}
	secretFields  = []string{
		"secret", "password", "passcode", "token", "join_token", "private_key", "user_data", "user_data_base64",
		"payload", "env",
	}
)

// Debug gets requests and answers, a line at a time and without secrets.
type Debug func(format string, args ...any)

// Wrap gives a transport that shows each request and its answer; a nil Debug changes nothing.
func (d Debug) Wrap(next http.RoundTripper) http.RoundTripper {
	if d == nil {
		return next
	}
	return debugged{d, next}
}

type debugged struct {
	show Debug
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t debugged) RoundTrip(req *http.Request) (*http.Response, error) {
	t.show("> %s %s", req.Method, req.URL.Redacted())
	t.header(">", req.Header)
	t.body(">", sent(req))
	began := time.Now()
	resp, err := t.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	_ = resp.Body.Close()
	if err != nil {
		return nil, err
	}
	resp.Body = io.NopCloser(bytes.NewReader(text))
	t.show("< %s in %s", resp.Status, time.Since(began).Round(100*time.Microsecond))
	t.header("<", resp.Header)
	t.body("<", text)
	return resp, nil
}

// sent is a copy of a request's body.
func sent(req *http.Request) []byte {
	if req.GetBody == nil {
		return nil
	}
	body, err := req.GetBody()
	if err != nil {
		return nil
	}
	defer func() { _ = body.Close() }()
	text, _ := io.ReadAll(body)
	return text
}

func (t debugged) header(side string, h http.Header) {
	for _, name := range slices.Sorted(maps.Keys(h)) {
		value := strings.Join(h[name], ", ")
		if slices.Contains(secretHeaders, name) {
			value = redacted
		}
		t.show("%s %s: %s", side, name, value)
	}
}

// body shows JSON without its secrets. Of any other body it shows the size.
func (t debugged) body(side string, body []byte) {
	if len(body) == 0 {
		return
	}
	var value any
	if json.Unmarshal(body, &value) != nil {
		t.show("%s (%d bytes)", side, len(body))
		return
	}
	shown, err := json.Marshal(hide(value))
	if err == nil {
		t.show("%s %s", side, shown)
	}
}

func hide(value any) any {
	switch value := value.(type) {
	case map[string]any:
		for name, inner := range value {
			if slices.Contains(secretFields, name) && inner != nil {
				value[name] = redacted
				continue
			}
			value[name] = hide(inner)
		}
	case []any:
		for i, inner := range value {
			value[i] = hide(inner)
		}
	case string: // the query of a URL may have a token: a console's has one, and a callback's may
		if at, query, isURL := strings.Cut(value, "?"); isURL && query != "" && strings.Contains(at, "://") {
			return at + "?" + redacted
		}
	}
	return value
}
