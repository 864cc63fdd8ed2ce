package console

import (
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestFiles checks the security headers and the ETag. Files need no session.
func TestFiles(t *testing.T) {
	t.Parallel()
	entries, err := os.ReadDir("static")
	if err != nil {
		t.Fatal(err)
	}
	database := testkit.Database(t)
	app := testkit.Start(t, testkit.Env(t, database, nil), Function)
	paths := map[string]string{"/console/": "text/html; charset=utf-8"}
	for _, e := range entries {
		_, extension, _ := strings.Cut(e.Name(), ".")
		paths["/console/"+e.Name()] = contentTypes["."+extension]
	}
	for path, kind := range paths {
		a := app.Get(t, path)
		if a.Status != 200 || len(a.Body) == 0 || kind == "" || a.Header.Get("Content-Type") != kind {
			t.Errorf("%s: got %d %s", path, a.Status, a.Header)
		}
		for name, want := range map[string]string{
			"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; " +
				"img-src 'self' data:; connect-src 'self'; form-action 'none'; " +
				"base-uri 'none'; frame-ancestors 'none'",
			"Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff",
			"Cross-Origin-Opener-Policy": "same-origin", "Cache-Control": "no-cache",
		} {
			if got := a.Header.Get(name); got != want {
				t.Errorf("%s: %s is %q", path, name, got)
			}
		}
		tag := a.Header.Get("ETag")
		for _, known := range []string{tag, "W/" + tag, `"x", ` + tag} {
			if again := app.Get(t, path, "If-None-Match", known); again.Status != 304 || len(again.Body) != 0 ||
				again.Header.Get("ETag") != tag {
				t.Errorf("%s, known as %s: got %d", path, known, again.Status)
			}
		}
		if other := app.Get(t, path, "If-None-Match", `"other"`); other.Status != 200 {
			t.Errorf("%s, known as another: got %d", path, other.Status)
		}
		head, err := http.Head(app.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		if _ = head.Body.Close(); head.StatusCode != http.StatusOK || head.Header.Get("ETag") != tag {
			t.Errorf("HEAD %s: got %d", path, head.StatusCode)
		}
	}
	for _, path := range []string{"/", "/console"} {
		if a := app.Get(t, path); a.Status != 302 || a.Header.Get("Location") != "/console/" {
			t.Errorf("%s: got %d %s", path, a.Status, a.Header)
		}
	}
	for _, path := range []string{
		"/console/nothing.js", "/console/..%2fconfig.go", "/console/static", "/console/%2e%2e",
		"/console/x/y",
	} {
		if a := app.Get(t, path); a.Status != 404 {
			t.Errorf("%s: got %d", path, a.Status)
		}
	}
	if n := testkit.Scalar[int](t, testkit.Pool(t, database),
		"select count(*)::int from requests where status in (200, 302, 304)"); n != 0 {
		t.Errorf("%d requests for files are in the log", n)
	}
}

// TestFilesWithoutPostgres serves the page, which reports the failure.
func TestFilesWithoutPostgres(t *testing.T) {
	t.Parallel()
	app := testkit.Start(t, testkit.Env(t, "postgres://nobody@127.0.0.1:1/x", nil), Function)
	if a := app.Get(t, "/console/"); a.Status != 200 {
		t.Errorf("the page: got %d", a.Status)
	}
	if a := app.Get(t, "/console/session", "Cookie", cookieName+"=x"); a.Status != 503 ||
		a.Header.Get("Retry-After") == "" {
		t.Errorf("the session: got %d %s", a.Status, a.Body)
	}
}
