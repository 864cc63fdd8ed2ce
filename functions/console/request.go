package console

import (
	"cmp"
	"net"
	"net/http"
	"strings"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

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
	asked := *r
	asked.Host = host(r)
	if err := new(http.CrossOriginProtection).Check(&asked); err != nil {
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
			"this browser is signed in as somebody else now, or to another project: load the page again")
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
