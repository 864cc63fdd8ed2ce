package console

import (
	"cmp"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path"
	"strings"
	"time"

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

func sessionRoutes(api huma.API, h handler) {
	tags := []string{"console"}
	withSession, anyone := map[string][]string{"consoleSession": {}}, map[string][]string{}
	httpx.Serve[signInInput, httpx.Value[Session]](api, huma.Operation{
		OperationID: "signIn", Method: http.MethodPost, Path: "/console/session", Tags: tags,
		Security: []map[string][]string{anyone}, Middlewares: httpx.Before(canSignIn),
		DefaultStatus: http.StatusCreated,
		Summary:       "Sign in",
		Responses: httpx.Answers(map[int]string{
			201: "The session, and the cookie.",
			400: "A field is wrong; or the user has several projects, and `errors` lists them to choose from.",
			401: "Keystone does not accept the credentials. The answer does not say why.",
			403: "The project is not served here, the request is another page's, or it came by plain http.",
			429: "", 502: "",
		}),
	}, h.signIn)
	httpx.Serve[struct{}, httpx.Value[Session]](api, huma.Operation{
		OperationID: "getSession", Method: http.MethodGet, Path: "/console/session", Tags: tags,
		Security: []map[string][]string{withSession},
		Summary:  "Show who is signed in",
		Responses: httpx.Answers(map[int]string{
			200: "The session.", 400: "", 401: "No session, or the session has expired.",
		}),
	}, h.session)
	httpx.Serve[signOutInput, struct{}](api, huma.Operation{
		OperationID: "signOut", Method: http.MethodDelete, Path: "/console/session", Tags: tags,
		Security: []map[string][]string{withSession, anyone}, Middlewares: httpx.Before(isFromPage),
		Summary: "Sign out",
		Responses: httpx.Answers(map[int]string{
			204: "The session has ended, and the cookie is deleted.", 400: "",
			401: "With `all`: no session, or the session has expired.", 403: "The request is another page's.",
		}),
	}, h.signOut)
}

// PageInput is part of a request that only the page sends. It is exported because huma ignores embedded types that are
// not.
type PageInput struct {
	Page string `header:"X-Cloudfn-Console" example:"1"`
}

func isFromPage(ctx context.Context) error { return checkPage(httpx.RequestOf(ctx)) }

func canSignIn(ctx context.Context) error {
	r := httpx.RequestOf(ctx)
	if err := checkPage(r); err != nil {
		return err
	}
	if !secure(r) && !loopback(r) {
		return apperr.New(apperr.Forbidden,
			"sign in over https: this request came by plain http, which anybody on the way can read "+
				"(if there is a proxy that takes https, it must say so in X-Forwarded-Proto)")
	}
	return nil
}

// Session is who is signed in. It does not show the token.
type Session struct {
	User      Named     `json:"user"`
	Project   Named     `json:"project"`
	Roles     []string  `json:"roles"`
	ExpiresAt time.Time `json:"expires_at"`
}

// Named is an id with its name.
type Named struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

// SignIn is the body of POST /console/session: a user and a password, or a token.
type SignIn struct {
	User          string        `json:"user,omitempty" maxLength:"255" doc:"The user's name."`
	Password      domain.Secret `json:"password,omitempty" maxLength:"4096"`
	UserDomain    string        `json:"user_domain,omitempty" maxLength:"255" doc:"The name of the user's domain."`
	Project       string        `json:"project,omitempty" maxLength:"255"`
	ProjectDomain string        `json:"project_domain,omitempty" maxLength:"255"`

	Token domain.Secret `json:"token,omitempty" maxLength:"8192" pattern:"^[!-~]*$" patternDescription:"a token"`
}

// Resolve implements huma.Resolver.
func (in *SignIn) Resolve(huma.Context) (faults []error) {
	fault := func(field, detail string) { faults = append(faults, apperr.InvalidField(field, detail)) }
	for field, name := range map[string]string{
		"user": in.User, "user_domain": in.UserDomain, "project": in.Project, "project_domain": in.ProjectDomain,
	} {
		if detail := domain.Unstorable(name); detail != "" {
			fault(field, detail)
		}
	}
	switch {
	case in.Token != "" && *in != SignIn{Token: in.Token}:
		fault("token", "stands alone: it determines the user and the project")
	case in.Token != "":
	case in.User == "":
		fault("user", "is missing: send a user and a password, or a token")
	case in.Password == "":
		fault("password", "is missing")
	case strings.ContainsRune(in.Password.Reveal(), 0): // Keystone fails at it, but only for a user that exists
		fault("password", "is not text")
	}
	return faults
}

const defaultDomain = "Default"

func (in SignIn) login() domain.Login {
	l := domain.Login{
		User: in.User, UserDomain: in.UserDomain, Password: in.Password, Project: in.Project,
		ProjectDomain: in.ProjectDomain,
	}
	if l.UserDomain == "" {
		l.UserDomain = defaultDomain
	}
	return l
}

type signOutInput struct {
	PageInput
	All bool `query:"all" default:"false" doc:"End all sessions of the user, in all browsers."`
}

type signInInput struct {
	PageInput
	Body SignIn
}

func (h handler) signIn(ctx context.Context, in *signInInput) (httpx.Response, error) {
	source := domain.AddressSource(httpx.ClientAddress(ctx))
	if err := h.signIns.Take(ctx, source, "this address"); err != nil {
		return httpx.Response{}, err
	}
	var cookie domain.Secret
	var session domain.Session
	var err error
	if in.Body.Token != "" {
		cookie, session, err = h.svc.SignInWith(ctx, in.Body.Token)
	} else {
		cookie, session, err = h.svc.SignIn(ctx, in.Body.login())
	}
	if err != nil {
		return httpx.Response{}, err
	}
	r := httpx.RequestOf(ctx)
	if _, err := h.svc.SignOut(ctx, cookieOf(r)); err != nil { // the new session exists, so its cookie must be sent
		slog.WarnContext(ctx, "the replaced session could not be ended: it ends when it expires", "error", err)
	}
	resp, err := show(http.StatusCreated, session)
	setCookie(resp.Header, r, cookie)
	return resp, err
}

func (h handler) session(ctx context.Context, _ *struct{}) (httpx.Response, error) {
	r := httpx.RequestOf(ctx)
	session, err := h.svc.Open(ctx, cookieOf(r), isUse(r))
	if err != nil {
		return httpx.Response{}, err
	}
	return show(http.StatusOK, session)
}

func (h handler) signOut(ctx context.Context, in *signOutInput) (httpx.Response, error) {
	r := httpx.RequestOf(ctx)
	end := h.svc.SignOut
	if in.All {
		end = h.signOutEverywhere
	}
	who, err := end(ctx, cookieOf(r))
	if err != nil {
		return httpx.Response{}, err
	}
	resp := httpx.Response{Status: http.StatusNoContent, Header: http.Header{}, Caller: who}
	setCookie(resp.Header, r, "")
	return resp, nil
}

// signOutEverywhere ends all sessions of the user whom the page shows.
func (h handler) signOutEverywhere(ctx context.Context, cookie domain.Secret) (domain.Identity, error) {
	session, err := h.svc.Open(ctx, cookie, true)
	if err != nil {
		return domain.Identity{}, err
	}
	if err := checkUser(httpx.RequestOf(ctx), session.Who); err != nil {
		return session.Who, err
	}
	return session.Who, h.svc.SignOutEverywhere(ctx, session)
}

func show(status int, s domain.Session) (httpx.Response, error) {
	roles := s.Who.Roles
	if roles == nil {
		roles = []string{}
	}
	resp, err := httpx.JSON(status, Session{
		User: Named{s.Who.UserID, s.Who.UserName}, Project: Named{s.Who.ProjectID, s.Who.ProjectName}, Roles: roles,
		ExpiresAt: s.Until,
	})
	resp.Caller = s.Who
	return resp, err
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
