package pollinstances

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// between stands between the function and the real Nova: for what Nova cannot be made to do to one test alone.
type between struct {
	env map[string]string // sends a process here

	mu          sync.Mutex
	uris        []string                                // paths with queries
	before      func(*http.Request)                     // may change a request
	change      func(server map[string]any) (keep bool) // may change a server that is shown, or hide it
	fails       func(uri string) bool                   // these are responded with 500
	refuses     func(uri string) bool                   // these with 403
	unavailable bool
	holds       chan struct{} // requests wait until it is closed; nil = none
	lists       chan struct{} // lists of changes wait here, after Nova's own answer
}

// newBetween stands there for a process with the service account that may only read.
func newBetween(t *testing.T) *between { t.Helper(); return newBetweenAs(t, "collector") }

// newBetweenAs stands there for a process with an account.
func newBetweenAs(t *testing.T, account string) *between {
	t.Helper()
	nova, err := url.Parse(testkit.Compute(t, testkit.Login(t, "admin")).Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	b := &between{}
	proxy := &httputil.ReverseProxy{
		Rewrite:        func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = nova.Scheme, nova.Host },
		ModifyResponse: b.edit,
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		unavailable, fails, refuses, holds := b.take(r)
		if holds != nil {
			<-holds
		}
		if refuses {
			http.Error(w, `{"forbidden": {"code": 403, "message": "Policy doesn't allow it."}}`, http.StatusForbidden)
			return
		}
		if fails {
			http.Error(w, `{"computeFault": {"code": 500, "message": "Unexpected API Error."}}`, http.StatusInternalServerError)
			return
		}
		if unavailable {
			panic(http.ErrAbortHandler) // the connection breaks
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	b.env = testkit.RedirectTo(t, map[string]string{"compute": server.URL + strings.TrimSuffix(nova.Path, "/")}).Env(t,
		account)
	return b
}

func (b *between) take(r *http.Request) (unavailable, fails, refuses bool, holds chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.uris = append(b.uris, r.URL.RequestURI())
	if b.before != nil {
		b.before(r)
	}
	uri := r.URL.RequestURI()
	return b.unavailable, b.fails != nil && b.fails(uri), b.refuses != nil && b.refuses(uri), b.holds
}

// gate returns a channel to hold requests by, and the function that lets them pass.
func gate(t *testing.T) (closed chan struct{}, open func()) {
	t.Helper()
	closed = make(chan struct{})
	open = sync.OnceFunc(func() { close(closed) })
	t.Cleanup(open)
	return closed, open
}

// set changes what it does.
func (b *between) set(do func(*between)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	do(b)
}

// requests are those since the last call.
func (b *between) requests() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	uris := b.uris
	b.uris = nil
	return uris
}

func (b *between) edit(resp *http.Response) error {
	b.mu.Lock()
	change, lists := b.change, b.lists
	b.mu.Unlock()
	isList := resp.Request.URL.Query().Has("changes-since")
	if lists != nil && isList && resp.StatusCode == http.StatusOK {
		<-lists
	}
	if change == nil || resp.StatusCode != http.StatusOK {
		return nil
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	var document map[string]any
	if json.Unmarshal(body, &document) == nil {
		if list, ok := document["servers"].([]any); ok {
			document["servers"] = slices.DeleteFunc(list, func(s any) bool { return !change(s.(map[string]any)) })
		}
		if one, ok := document["server"].(map[string]any); ok && !change(one) {
			resp.StatusCode, document = http.StatusNotFound, map[string]any{"itemNotFound": map[string]any{
				"code":    404,
				"message": "hidden",
			}}
		}
		body, _ = json.Marshal(document)
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	resp.ContentLength = int64(len(body))
	resp.Header.Del("Content-Length")
	return nil
}
