package runconnections

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// refusingKeystone is a proxy of the real Keystone that answers logins with a delegation itself while it has an answer.
// It forwards everything else, the account's own logins too.
type refusingKeystone struct {
	url string

	mu     sync.Mutex
	status int // 0 = it passes on what comes; -1 = it closes the connection
	body   string
	isOver func() bool
}

func newRefusingKeystone(t *testing.T) *refusingKeystone {
	t.Helper()
	keystone, err := url.Parse(testkit.KeystoneURL(t))
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.Out.URL.Scheme, r.Out.URL.Host = keystone.Scheme, keystone.Host
	}}
	k := &refusingKeystone{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		status, answer := k.refusal(r, string(body))
		switch status {
		case 0:
			proxy.ServeHTTP(w, r)
		case -1:
			panic(http.ErrAbortHandler)
		default:
			w.WriteHeader(status)
			_, _ = io.WriteString(w, answer)
		}
	}))
	t.Cleanup(server.Close)
	k.url = server.URL + "/v3"
	return k
}

func (k *refusingKeystone) refusal(r *http.Request, body string) (status int, answer string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	isDelegation := strings.Contains(body, "OS-TRUST:trust") || strings.Contains(body, `"application_credential"`)
	isLogin := r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/auth/tokens")
	if !isLogin || !isDelegation || k.status == 0 {
		return 0, ""
	}
	if k.isOver != nil && k.isOver() {
		return 0, ""
	}
	return k.status, k.body
}

// answer sets the answer to logins with a delegation. Once isOver reports true they are forwarded to Keystone.
func (k *refusingKeystone) answer(status int, body string, isOver func() bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.status, k.body, k.isOver = status, body, isOver
}

// keystoneSays is a refusal as Keystone writes it.
func keystoneSays(status int) string {
	return fmt.Sprintf(`{"error":{"code":%d,"message":"no","title":%q}}`, status, http.StatusText(status))
}

// TestLongKeystoneThatIsHalfUp: neither a proxy's answer nor a failure of Keystone ends a delegation, nor does one
// rejection that Keystone withdraws a moment later. Only two rejections by Keystone itself do.
func TestLongKeystoneThatIsHalfUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	keystone := newRefusingKeystone(t)
	all := []domain.Connection{w.trust(t), w.credential(t, "")}
	p := w.function(t, accountAt(t, keystone.url, nil))
	const page = "<html><head><title>Service Unavailable</title></head></html>"
	moment := func() func() bool { // after the first refusal
		var over time.Time
		return func() bool {
			if over.IsZero() {
				over = time.Now().Add(refusalPause / 2)
			}
			return time.Now().After(over)
		}
	}
	for _, tc := range []struct {
		name       string
		status     int
		body       string
		isOver     func() bool
		want       string
		isAnswered bool // in the same event
	}{
		{name: "it accepts them", want: "active", isAnswered: true},
		{name: "it closes the connection", status: -1, want: "active"},
		{name: "its database is away", status: 500, body: keystoneSays(500), want: "active"},
		{name: "a proxy's 502", status: 502, body: page, want: "active"},
		{name: "a proxy's 503", status: 503, body: page, want: "active"},
		{name: "a proxy's 504", status: 504, body: page, want: "active"},
		{name: "a proxy's 401", status: 401, body: page, want: "active"},
		{name: "a proxy's 403", status: 403, body: page, want: "active"},
		{name: "a proxy's 404", status: 404, body: page, want: "active"},
		{name: "a gateway's 404", status: 404, body: `{"message":"no Route matched with those values"}`, want: "active"},
		{
			name: "Keystone's 401, once", status: 401, body: keystoneSays(401), isOver: moment(), want: "active",
			isAnswered: true,
		},
		{
			name: "Keystone's 404, once", status: 404, body: keystoneSays(404), isOver: moment(), want: "active",
			isAnswered: true,
		},
		{name: "Keystone's 401", status: 401, body: keystoneSays(401), want: "lost"},
	} {
		keystone.answer(tc.status, tc.body, tc.isOver)
		w.exec(t, `
update connections set not_before = null, check_error = '', checked_at = checked_at - interval '1 hour',
                       next_check_at = clock_timestamp() - interval '1 hour'`)
		tick(t, p)
		for _, c := range all {
			got := w.text(t, `
select status || ' ' || (check_error = '' and checked_at > clock_timestamp() - interval '1 minute')
from connections where id = $1`, c.ID)
			if want := fmt.Sprint(tc.want, " ", tc.isAnswered); got != want {
				t.Errorf("%s: the %s is %s, want %s", tc.name, c.Kind, got, want)
			}
		}
	}
}
