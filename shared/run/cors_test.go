package run

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestCORS: pages of the origins that are set may call the API with a token, and no others.
func TestCORS(t *testing.T) {
	t.Parallel()
	calls := 0
	api := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		calls++
		w.Header().Set("ETag", `"1"`)
	})
	request := func(origins []string, method, origin string) http.Header {
		r, w := httptest.NewRequest(method, "/v1/servers", nil), httptest.NewRecorder()
		r.Header.Set("Origin", origin)
		if method == http.MethodOptions {
			r.Header.Set("Access-Control-Request-Method", http.MethodPatch)
			r.Header.Set("Access-Control-Request-Headers", "if-match,x-auth-token")
		}
		withCORS(api, origins).ServeHTTP(w, r)
		return w.Header()
	}
	const portal, other = "https://portal.example.com", "https://other.example.com"
	for _, c := range []struct {
		origins      []string
		origin, want string
	}{
		{[]string{portal}, portal, portal},
		{[]string{other, portal}, portal, portal},
		{[]string{portal}, other, ""},
		{[]string{portal}, "http://portal.example.com", ""},
		{[]string{portal}, portal + ".evil.example", ""},
		{[]string{"*"}, other, "*"},
		{nil, portal, ""},
	} {
		for _, method := range []string{http.MethodOptions, http.MethodGet} {
			got := request(c.origins, method, c.origin)
			if got.Get("Access-Control-Allow-Origin") != c.want || got.Get("Access-Control-Allow-Credentials") != "" {
				t.Errorf("%s of %s with %v: got %v", method, c.origin, c.origins, got)
			}
		}
	}
	calls = 0
	preflight := request([]string{portal}, http.MethodOptions, portal)
	if calls != 0 || preflight.Get("Access-Control-Allow-Methods") != http.MethodPatch ||
		preflight.Get("Access-Control-Allow-Headers") != "if-match,x-auth-token" ||
		preflight.Get("Access-Control-Max-Age") != "7200" {
		t.Errorf("after %d calls: %v", calls, preflight)
	}
	if got := request([]string{portal}, http.MethodGet, portal); calls != 1 || got.Get("Vary") != "Origin" ||
		got.Get("Access-Control-Expose-Headers") == "" || got.Get("ETag") != `"1"` {
		t.Errorf("after %d calls: %v", calls, got)
	}
}

// TestOrigins: a value that no browser sends as an origin is refused.
func TestOrigins(t *testing.T) {
	t.Parallel()
	for origin, isGood := range map[string]bool{
		"*": true, "https://portal.example.com": true, "http://localhost:3000": true, "portal.example.com": false,
		"https://portal.example.com/": false, "https://u:p@portal.example.com": false, "ftp://x": false, "null": false,
		"https://*.example.com": false, "": false, "https://x:443": false, "http://x:80": false, "https://x:": false,
		"https://Portal.example.com": false, "https://münchen.example": false, "http://192.0.2.1:8443": true,
	} {
		if err := (Listen{CORSOrigins: []string{origin}}).validateOrigins(); (err == nil) != isGood {
			t.Errorf("%q: %v", origin, err)
		}
	}
}
