package httpx

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestRouter prefers literal segments from left to right, and keeps what each path permits.
func TestRouter(t *testing.T) {
	t.Parallel()
	var routes []Route
	for _, pattern := range []string{
		"GET /s/{id}", "PATCH /s/{id}", "GET /s/history/{id}", "GET /s/{id}/console", "POST /s/{id}/console",
		"POST /s/actions", "GET /f/{kind}/{name}", "POST /f/{kind}/{name}/undo",
	} {
		routes = append(routes, Route{Pattern: pattern})
	}
	r := newRouter(routes)
	for _, tc := range []struct{ request, want, id, allow string }{
		{request: "GET /s/1", want: "GET /s/{id}", id: "1"},
		{request: "GET /s/1/console", want: "GET /s/{id}/console", id: "1"},
		{request: "HEAD /s/1/console", want: "GET /s/{id}/console", id: "1"},
		{request: "POST /s/1/console", want: "POST /s/{id}/console", id: "1"},
		{request: "GET /s/history/console", want: "GET /s/history/{id}", id: "console"},
		{request: "POST /s/history/console", want: "POST /s/{id}/console", id: "history"},
		{request: "POST /s/actions", want: "POST /s/actions"},
		{request: "PUT /s/1/console", allow: "GET, HEAD, POST"},
		{request: "PUT /s/history/1", allow: "GET, HEAD"},
		{request: "PUT /f/a/b/undo", allow: "POST"},
		{request: "GET /s/1/nothing"},
		{request: "GET /f/a/b", want: "GET /f/{kind}/{name}"},
	} {
		method, path, _ := strings.Cut(tc.request, " ")
		x := r.find(httptest.NewRequest(method, path, nil))
		got, status := "", x.status
		if x.route != nil {
			got = x.route.Pattern
		}
		if got != tc.want || x.request.PathValue("id") != tc.id || x.header.Get("Allow") != tc.allow {
			t.Errorf("%s: got %q, %q, %d %v", tc.request, got, x.request.PathValue("id"), status, x.header)
		}
		if isAbsent := tc.want == "" && tc.allow == ""; isAbsent != (status == http.StatusNotFound) {
			t.Errorf("%s: got %d", tc.request, status)
		}
	}
}
