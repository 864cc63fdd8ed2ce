package process_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// muteKeystone makes the requested trusts, but never answers those requests.
func muteKeystone(t *testing.T) (env map[string]string, made *atomic.Int64) {
	t.Helper()
	behind := testkit.RedirectTo(t, nil)
	to, err := url.Parse(behind.URL())
	if err != nil {
		t.Fatal(err)
	}
	made = &atomic.Int64{}
	proxy := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = to.Scheme, to.Host },
		ModifyResponse: func(resp *http.Response) error {
			if resp.StatusCode == http.StatusCreated && strings.HasSuffix(resp.Request.URL.Path, "/OS-TRUST/trusts") {
				made.Add(1)
				<-resp.Request.Context().Done()
			}
			return nil
		},
	})
	t.Cleanup(proxy.Close)
	env = behind.Env(t, "collector")
	env["OS_AUTH_URL"] = proxy.URL + "/v3"
	return env, made
}

// TestLongTrustsSurviveKill kills a process after Keystone has made the trusts of a changed connection and of a granted
// request, and before it has said so. Neither is stored, and both are taken back. The connection's own trust stays, and
// the same requests succeed later.
func TestLongTrustsSurviveKill(t *testing.T) {
	t.Parallel()
	d := newDelegates(t)
	connection := d.delegate(t, `["allocate"]`, `{}`)
	asked := d.at(d.actor, "connections").Post(t, "/v1/connections/requests", fmt.Sprintf(
		`{"project_id": %q, "why": "we build at night", "actions": ["allocate"], "duration": "2h"}`, d.owner.ID))
	var request struct{ ID string }
	if asked.JSON(t, &request); asked.Status != http.StatusCreated {
		t.Fatalf("%d %s", asked.Status, asked.Body)
	}
	own := d.owner.Trusts(t)
	calls := map[string]func(*testkit.Client) (testkit.Answer, error){
		"change": func(c *testkit.Client) (testkit.Answer, error) {
			body := fmt.Sprintf(`{"expires_at": %q}`, time.Now().Add(3*time.Hour).UTC().Format(time.RFC3339))
			return c.Try(t, "PATCH", "/v1/connections/"+connection, body, "Content-Type", "application/json")
		},
		"grant": func(c *testkit.Client) (testkit.Answer, error) {
			return c.Try(t, "POST", "/v1/connections/requests/"+request.ID+"/grant", `{}`, "Content-Type",
				"application/json")
		},
	}

	env, made := muteKeystone(t)
	env["FUNCTION_TARGET"] = "connections"
	victim := testkit.Spawn(t, testkit.Env(t, d.database, env))
	var all sync.WaitGroup
	for _, call := range calls {
		all.Go(func() { _, _ = call(victim.As(d.tokens[d.owner])) })
	}
	testkit.Eventually(t, time.Minute, "Keystone has made both trusts", func() bool { return made.Load() == 2 })
	victim.Kill()
	all.Wait()
	conn := testkit.Connect(t, d.database)
	if n := len(d.owner.Trusts(t)); n != 3 {
		t.Fatalf("Keystone has %d trusts", n)
	}
	change(t, conn, "update trusts_to_revoke set not_before = not_before - interval '5 minutes'")
	change(t, conn, "update connection_requests set claimed_until = claimed_until - interval '5 minutes'")
	testkit.Eventually(t, time.Minute, "both are taken back", func() bool {
		d.tick(t)
		return slices.Equal(d.owner.Trusts(t), own)
	})
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from trusts_to_revoke"); n != 0 {
		t.Errorf("%d are still on the list", n)
	}
	for name, want := range map[string]int{"change": http.StatusOK, "grant": http.StatusCreated} {
		if a, err := calls[name](d.at(d.owner, "connections")); err != nil || a.Status != want {
			t.Errorf("%s after that: %d %s %v", name, a.Status, a.Body, err)
		}
	}
	if n := len(d.owner.Trusts(t)); n != 3 { // the replaced one stays for two minutes
		t.Errorf("Keystone has %d trusts", n)
	}
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from connections where status = 'active'"); n != 2 {
		t.Errorf("there are %d connections", n)
	}
}
