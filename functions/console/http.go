package console

import (
	"cmp"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"path"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

type handler struct {
	svc       service
	signIns   postgres.RateLimit
	functions http.RoundTripper // sends a request to a function
	files     map[string]file   // the page and its files, by name
}

const (
	pagePath = "/console/"
	apiPath  = "/console/api"
)

// routes declares what the function serves: operations for sessions; and the files and the proxy, which no Go types
// describe.
func routes(h handler) []httpx.Route {
	list := []httpx.Route{
		// The page reports that Postgres is unavailable, so it does not need it.
		static("GET /{$}", toPage), static("GET /console", toPage),
		static("GET "+pagePath+"{$}", h.file), static("GET "+pagePath+"{file}", h.file),
		httpx.Handle(apiPath+"/{path...}", h.proxy),
	}
	for i := range list {
		list[i].Public = true // a session replaces the token
	}
	list = append(list, httpx.Routes(func(api huma.API) { sessionRoutes(api, h) })...)
	for i := range list {
		list[i].Known = h.known
	}
	return list
}

// known finds the session of a request. Without it all users of the page behind one address would share a limit.
func (h handler) known(header http.Header) (domain.Identity, bool) {
	return h.svc.Known(cookieOf(&http.Request{Header: header}))
}

func static(pattern string, serve func(*http.Request) (httpx.Response, error)) httpx.Route {
	route := httpx.Handle(pattern, serve)
	route.Probe = true
	return route
}

// toPage redirects a browser from the base URL to the page.
func toPage(*http.Request) (httpx.Response, error) {
	return httpx.Response{
		Status: http.StatusFound, Header: http.Header{"Location": {pagePath}}, ContentType: "text/plain; charset=utf-8",
		Body: []byte("see " + pagePath + "\n"),
	}, nil
}

const (
	cookieName = "cloudfn_session"
	// hostCookie is its name over https. Browsers take it from this host only: no other site of the domain can set it.
	hostCookie = "__Host-" + cookieName
	pageHeader = "X-Cloudfn-Console"
	userHeader = "X-Cloudfn-User"

	// refresh is the page's header in a request that it sends on its own, after no one has used it for a while.
	refresh = "refresh"
)

// cookieOf is the cookie of the session; empty without one, and with two: one may be from another site of the same
// domain.
func cookieOf(r *http.Request) domain.Secret {
	for _, name := range []string{hostCookie, cookieName} {
		found := r.CookiesNamed(name)
		if len(found) == 1 {
			return domain.Secret(found[0].Value)
		}
		if len(found) > 1 || secure(r) {
			break
		}
	}
	return ""
}

// setCookie sets the session cookie until the browser is closed; an empty value deletes it. Scripts cannot read it,
// other sites cannot have it sent. Over plain http, on loopback only, it has neither Secure nor the name that takes it.
func setCookie(answer http.Header, r *http.Request, value domain.Secret) {
	//nolint:gosec // Secure is off for plain http on loopback
	c := http.Cookie{
		Name: cookieName, Value: value.Reveal(), Path: "/console", HttpOnly: true, SameSite: http.SameSiteStrictMode,
	}
	if secure(r) {
		c.Name, c.Path, c.Secure = hostCookie, "/", true
	}
	if value == "" {
		c.MaxAge = -1
	}
	answer.Set("Set-Cookie", c.String())
}

// checkPage rejects requests that another site has the browser send. SameSite cookies would not be sent either; two
// checks cover the mistakes of browsers.
func checkPage(r *http.Request) error {
	if sent := r.Header.Get(pageHeader); sent != "1" && sent != refresh { // other sites' pages may not send it
		return apperr.New(apperr.Forbidden, "%s: 1 is missing: this path is for the console's page; the API is at /v1/",
			pageHeader)
	}
	requested := *r
	requested.Host = host(r)
	if err := new(http.CrossOriginProtection).Check(&requested); err != nil {
		return apperr.Wrap(apperr.Forbidden, err, "the request is from another site's page")
	}
	return nil
}

// isUse reports whether a user has sent the request, who keeps the session alive.
func isUse(r *http.Request) bool { return r.Header.Get(pageHeader) != refresh }

// checkUser rejects requests of a page whose user is not the session's user any more, because another tab has signed in
// since: they would act in a project that the page does not show.
func checkUser(r *http.Request, who domain.Identity) error {
	if shown := r.Header.Get(userHeader); shown != "" && shown != who.UserID+"/"+who.ProjectID {
		return apperr.New(apperr.Unauthenticated,
			"this browser is signed in as someone else now, or to another project: load the page again")
	}
	return nil
}

// host is the host that the browser requested, by the proxy in front of us or by the request itself. Pages cannot set
// either in a browser.
func host(r *http.Request) string {
	return cmp.Or(forwarded(r, "host"), first(r.Header.Get("X-Forwarded-Host")), r.Host)
}

// secure reports whether the browser used https. Without a proxy's header the page's origin tells, which a browser
// sends with every request but GET.
func secure(r *http.Request) bool {
	if proto := cmp.Or(forwarded(r, "proto"), first(r.Header.Get("X-Forwarded-Proto"))); proto != "" {
		return strings.EqualFold(proto, "https")
	}
	return r.TLS != nil || strings.HasPrefix(r.Header.Get("Origin"), "https://")
}

// first is the entry of the proxy next to the browser.
func first(list string) string {
	text, _, _ := strings.Cut(list, ",")
	return strings.TrimSpace(text)
}

// forwarded is a part of that entry by RFC 7239, as our gateway writes it: in a cluster, other proxies change the older
// headers.
func forwarded(r *http.Request, name string) string {
	for pair := range strings.SplitSeq(first(r.Header.Get("Forwarded")), ";") {
		if key, value, _ := strings.Cut(strings.TrimSpace(pair), "="); strings.EqualFold(key, name) {
			return strings.Trim(value, `"`)
		}
	}
	return ""
}

// loopback reports whether the browser and this process are on one machine.
func loopback(r *http.Request) bool {
	name := host(r)
	if alone, _, err := net.SplitHostPort(name); err == nil {
		name = alone
	}
	name = strings.Trim(name, "[]")
	return name == "localhost" || strings.HasSuffix(name, ".localhost") || net.ParseIP(name).IsLoopback()
}

//go:embed static
var staticFiles embed.FS

const indexFile = "index.html"

// contentTypes are those of the files that there may be.
var contentTypes = map[string]string{
	".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
	".svg": "image/svg+xml", ".png": "image/png", ".ico": "image/x-icon", ".webmanifest": "application/manifest+json",
}

// policy lets the page use nothing but what comes from here, and no other page use it.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"form-action 'none'; base-uri 'none'; frame-ancestors 'none'"

// file is one file of the page, ready to be sent.
type file struct {
	kind string
	etag string
	body []byte
}

// page reads the files.
func page() (map[string]file, error) {
	entries, err := staticFiles.ReadDir("static")
	if err != nil {
		return nil, err
	}
	files := map[string]file{}
	for _, e := range entries {
		kind, known := contentTypes[path.Ext(e.Name())]
		if !known || e.IsDir() {
			return nil, fmt.Errorf("static/%s: unknown kind of file", e.Name())
		}
		body, err := staticFiles.ReadFile("static/" + e.Name())
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(body)
		files[e.Name()] = file{kind, `"` + base64.RawURLEncoding.EncodeToString(sum[:12]) + `"`, body}
	}
	return files, nil
}

// file gives a file of the page. A browser caches it, and revalidates it each time.
func (h handler) file(r *http.Request) (httpx.Response, error) {
	name := r.PathValue("file")
	if name == "" {
		name = indexFile
	}
	f, found := h.files[name]
	if !found {
		return httpx.Response{}, apperr.New(apperr.NotFound, "unknown file %.64q of the console", name)
	}
	resp := httpx.Response{Status: http.StatusOK, ContentType: f.kind, Body: f.body, Header: http.Header{}}
	for name, value := range map[string]string{
		"ETag": f.etag, "Cache-Control": "no-cache",
		"Content-Security-Policy": policy, "Referrer-Policy": "no-referrer",
		"Cross-Origin-Opener-Policy": "same-origin",
	} {
		resp.Header.Set(name, value)
	}
	if httpx.VersionsOf(r, "If-None-Match").Has(f.etag) {
		resp.Status, resp.Body = http.StatusNotModified, nil
	}
	return resp, nil
}
