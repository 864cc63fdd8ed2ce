package testkit

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/eventx"
)

// Client calls a cloudfn and validates every answer against openapi.yaml.
type Client struct {
	URL   string
	Token string
	Key   string // for events
	Via   string // host:port to connect to instead of the URL's, such as a cluster's ingress
}

// As returns the client with another token.
func (c *Client) As(token string) *Client {
	other := *c
	other.Token = token
	return &other
}

// Answer is the response to a request.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// JSON decodes the body.
func (a Answer) JSON(t testing.TB, into any) {
	t.Helper()
	if err := json.Unmarshal(a.Body, into); err != nil {
		t.Fatalf("%v in %s", err, a.Body)
	}
}

// Get, with optional header pairs.
func (c *Client) Get(t testing.TB, path string, header ...string) Answer {
	t.Helper()
	return c.Do(t, http.MethodGet, path, "", header...)
}

// Post sends JSON.
func (c *Client) Post(t testing.TB, path, body string, header ...string) Answer {
	t.Helper()
	return c.Do(t, http.MethodPost, path, body, append([]string{"Content-Type", "application/json"}, header...)...)
}

// Do sends a request. The test fails without an answer, or with one that openapi.yaml does not allow.
func (c *Client) Do(t testing.TB, method, path, body string, header ...string) Answer {
	t.Helper()
	a := must(c.Try(t, method, path, body, header...))(t)
	return a
}

// Try is Do for a process that may be killed: a missing answer is an error, not a failure of the test.
func (c *Client) Try(t testing.TB, method, path, body string, header ...string) (Answer, error) {
	t.Helper()
	answer, req, err := c.send(method, path, body, header...)
	if err == nil {
		conform(t, req, answer)
	}
	return answer, err
}

// Status sends a GET and returns the answer's status, for paths that openapi.yaml lacks.
func (c *Client) Status(path string) (int, error) {
	answer, _, err := c.send(http.MethodGet, path, "")
	return answer.Status, err
}

func (c *Client) send(method, path, body string, header ...string) (Answer, *http.Request, error) {
	ctx, cancel := context.WithTimeout(context.WithValue(context.Background(), via{}, c.Via), 2*time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, c.URL+path, strings.NewReader(body))
	if err != nil {
		return Answer{}, nil, err
	}
	if c.Token != "" {
		req.Header.Set("X-Auth-Token", c.Token)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return Answer{}, nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return Answer{Status: resp.StatusCode, Header: resp.Header, Body: data}, req, err
}

type via struct{}

// transport keeps connections per host of the URL. It dials the address in the context, if there is one.
var transport = &http.Transport{MaxIdleConnsPerHost: 256, DialContext: dial}

func dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if to, _ := ctx.Value(via{}).(string); to != "" {
		addr = to
	}
	return new(net.Dialer).DialContext(ctx, network, addr)
}

// Tick sends the CloudEvent that the PingSource of the function would send.
func (c *Client) Tick(t testing.TB, function string) Answer {
	t.Helper()
	a := must(c.TryTick(t, function))(t)
	return a
}

// TryTick is Tick for a process that may be killed.
func (c *Client) TryTick(t testing.TB, function string) (Answer, error) {
	t.Helper()
	e := eventx.Ping(function, domain.Secret(c.Key), time.Now())
	return c.Try(t, http.MethodPost, "/events/"+function, "",
		"Ce-Specversion", e.SpecVersion(), "Ce-Id", e.ID(), "Ce-Type", e.Type(), "Ce-Source", e.Source(),
		"Ce-Cloudfnkey", c.Key)
}

// api is the OpenAPI document and its router.
var api = sync.OnceValues(func() (routers.Router, error) {
	doc, err := openapi3.NewLoader().LoadFromFile(filepath.Join(Root(), "functions", "openapi.yaml"))
	if err != nil {
		return nil, err
	}
	doc.Servers = nil // processes under test have other URLs
	// make lint validates the examples; here that would take seconds in each package.
	return legacy.NewRouter(doc, openapi3.DisableExamplesValidation())
})

// conform validates an answer against openapi.yaml. A path or a method that the file lacks must be answered with 404 or
// 405.
func conform(t testing.TB, req *http.Request, answer Answer) {
	t.Helper()
	router, err := api()
	if err != nil {
		t.Fatalf("openapi.yaml: %v", err)
	}
	if answer.Status == http.StatusNotFound && bytes.Contains(answer.Body, []byte("there is nothing at this path")) {
		return // a function that runs alone serves only its own paths
	}
	if req.URL.Query().Has("fields") && answer.Status == http.StatusOK {
		return // required fields are absent, as requested
	}
	req = behindConsole(req)
	route, params, err := router.FindRoute(req)
	if err != nil {
		switch answer.Status {
		case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusServiceUnavailable:
		default:
			t.Errorf("%s %s answered %d and is not in openapi.yaml", req.Method, req.URL.Path, answer.Status)
		}
		return
	}
	input := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{Request: req, PathParams: params, Route: route},
		Status:                 answer.Status, Header: answer.Header, Body: io.NopCloser(bytes.NewReader(answer.Body)),
		Options: &openapi3filter.Options{IncludeResponseStatus: true, MultiError: true},
	}
	if err := openapi3filter.ValidateResponse(context.Background(), input); err != nil {
		t.Errorf("%s %s answered %d against openapi.yaml: %v\n%s", req.Method, req.URL, answer.Status, err, answer.Body)
	}
}

// behindConsole returns the API request that the console forwards: both have the same answer.
func behindConsole(req *http.Request) *http.Request {
	if path, isForwarded := strings.CutPrefix(req.URL.Path, "/console/api/"); isForwarded {
		req = req.Clone(req.Context())
		req.URL.Path = "/" + path
	}
	return req
}

// Names reports whether a problem has an error for the field.
func Names(t testing.TB, a Answer, field string) bool {
	t.Helper()
	var problem struct {
		Errors []struct{ Field string }
	}
	a.JSON(t, &problem)
	for _, e := range problem.Errors {
		if e.Field == field {
			return true
		}
	}
	return false
}
