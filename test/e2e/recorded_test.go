//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// recordedDelay is what a call to the recorded cloud takes.
const recordedDelay = 150 * time.Millisecond

// recordedCloud is a fake of OpenStack, for a rate that the sandbox's Python on two cores cannot serve: it sends a
// request to the sandbox once, and then answers it from memory, after recordedDelay. Its catalog has itself for each
// service. So bodies and headers are real, and times are not.
type recordedCloud struct {
	URL string // of Keystone, as pods reach it

	base     string            // of this server
	services map[string]string // the sandbox's URL of each type of service
	mu       sync.Mutex
	answers  map[string]*recordedAnswer
}

type recordedAnswer struct {
	once   sync.Once
	status int
	header http.Header
	body   []byte
}

// newRecordedCloud listens where pods reach it.
func newRecordedCloud(t *testing.T) *recordedCloud {
	t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	c := &recordedCloud{
		base: "http://" + listener.Addr().String(), answers: map[string]*recordedAnswer{},
		services: map[string]string{"identity": strings.TrimSuffix(testkit.KeystoneURL(t), "/v3")},
	}
	c.URL = c.base + "/identity/v3"
	server := &httptest.Server{
		Listener: listener, Config: &http.Server{Handler: c, ReadHeaderTimeout: time.Second},
	}
	server.Start()
	t.Cleanup(server.Close)
	return c
}

// ServeHTTP answers a request that it knows from memory. A request without a delay of its own would show what the
// machine can do, and not what functions do that wait for OpenStack.
func (c *recordedCloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead { // nothing that changes the sandbox
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	key := strings.Join([]string{
		r.Method, r.URL.String(), r.Header.Get("X-Auth-Token"), r.Header.Get("X-Subject-Token"),
		r.Header.Get("Openstack-Api-Version"), r.Header.Get("X-Openstack-Nova-Api-Version"),
	}, "\n")
	c.mu.Lock()
	answer := c.answers[key]
	if answer == nil {
		answer = &recordedAnswer{}
		c.answers[key] = answer
	}
	c.mu.Unlock()
	answer.once.Do(func() { c.record(r, answer) })
	select {
	case <-time.After(recordedDelay):
	case <-r.Context().Done():
		return
	}
	maps.Copy(w.Header(), answer.header)
	w.WriteHeader(answer.status)
	_, _ = w.Write(answer.body)
}

// record has the sandbox answer.
func (c *recordedCloud) record(r *http.Request, into *recordedAnswer) {
	into.status = http.StatusBadGateway
	service, path, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	c.mu.Lock()
	at := c.services[service]
	c.mu.Unlock()
	out, err := http.NewRequest(r.Method, at+"/"+path, http.NoBody)
	if at == "" || err != nil {
		return
	}
	out.URL.RawQuery, out.Header = r.URL.RawQuery, r.Header.Clone()
	out.Header.Del("Accept-Encoding")
	resp, err := http.DefaultClient.Do(out)
	if err != nil {
		return
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return
	}
	into.status, into.header, into.body = resp.StatusCode, resp.Header, c.withOwnCatalog(body)
	into.header.Del("Content-Length")
}

// withOwnCatalog has a catalog name this server, and remembers what it named. Any other answer stays as it is.
func (c *recordedCloud) withOwnCatalog(body []byte) []byte {
	if !bytes.Contains(body, []byte(`"catalog"`)) {
		return body
	}
	var document map[string]any
	if json.Unmarshal(body, &document) != nil {
		return body
	}
	holder := document
	if token, isToken := document["token"].(map[string]any); isToken {
		holder = token
	}
	list, _ := holder["catalog"].([]any)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, entry := range list {
		service := entry.(map[string]any)
		kind := service["type"].(string)
		for _, e := range service["endpoints"].([]any) {
			endpoint := e.(map[string]any)
			was, err := url.Parse(endpoint["url"].(string))
			if err != nil {
				continue
			}
			if kind != "identity" {
				c.services[kind] = was.Scheme + "://" + was.Host
			}
			endpoint["url"] = c.base + "/" + kind + was.Path
		}
	}
	changed, err := json.Marshal(document)
	if err != nil {
		return body
	}
	return changed
}
