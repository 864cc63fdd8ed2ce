package console

import (
	"cmp"
	"net"
	"net/http"
	"regexp"
	"strings"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// signIn is the body of POST /console/session: a user and a password, or a token.
type signIn struct {
	User          string        `json:"user"`
	Password      domain.Secret `json:"password"`
	UserDomain    string        `json:"user_domain"`
	Project       string        `json:"project"`
	ProjectDomain string        `json:"project_domain"`
	Token         domain.Secret `json:"token"`
}

const (
	defaultDomain = "Default"
	maxName       = 255
	maxPassword   = 4096
	maxToken      = 8 << 10
)

// A token is sent in a header.
var tokenForm = regexp.MustCompile(`^[!-~]+$`)

func (in signIn) check() error {
	switch {
	case in.Token != "" && in != signIn{Token: in.Token}:
		return apperr.InvalidField("token", "stands alone: it says already who signs in, and to which project")
	case in.Token != "" && (len(in.Token) > maxToken || !tokenForm.MatchString(in.Token.Reveal())):
		return apperr.InvalidField("token", "is not a token")
	case in.Token != "":
		return nil
	case in.User == "":
		return apperr.InvalidField("user", "is missing: send a user and a password, or a token")
	case in.Password == "":
		return apperr.InvalidField("password", "is missing")
	case len(in.Password) > maxPassword:
		return apperr.InvalidField("password", "is too long")
	case strings.ContainsRune(in.Password.Reveal(), 0): // Keystone fails at it, but only when there is such a user
		return apperr.InvalidField("password", "is not text")
	}
	for field, text := range map[string]string{"user": in.User, "user_domain": in.UserDomain, "project": in.Project, "project_domain": in.ProjectDomain} {
		if len(text) > maxName {
			return apperr.InvalidField(field, "is too long for a name")
		}
	}
	return nil
}

func (in signIn) login() domain.Login {
	l := domain.Login{User: in.User, UserDomain: in.UserDomain, Password: in.Password, Project: in.Project, ProjectDomain: in.ProjectDomain}
	if l.UserDomain == "" {
		l.UserDomain = defaultDomain
	}
	return l
}

const (
	cookieName = "cloudfn_session"
	pageHeader = "X-Cloudfn-Console"
	userHeader = "X-Cloudfn-User"
)

// cookieOf is the request's session; "" when there is none. Of two cookies of that name one may be from another site of the same
// domain, and which cannot be told.
func cookieOf(r *http.Request) domain.Secret {
	if found := r.CookiesNamed(cookieName); len(found) == 1 {
		return domain.Secret(found[0].Value)
	}
	return ""
}

// setCookie gives the browser the session, until it is closed; "" takes it away. Script cannot read it, no other site can have it
// sent along, and it goes to nothing but the console.
func setCookie(answer http.Header, r *http.Request, value domain.Secret) {
	c := http.Cookie{Name: cookieName, Value: value.Reveal(), Path: "/console", HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: secure(r)} //nolint:gosec // not so on one's own machine
	if value == "" {
		c.MaxAge = -1
	}
	answer.Set("Set-Cookie", c.String())
}

// checkPage refuses what another site has a browser send. A cookie that is SameSite would not come along; but who trusts in one
// thing only has nothing when a browser gets it wrong.
func checkPage(r *http.Request) error {
	if r.Header.Get(pageHeader) != "1" { // no other site's page can send it without being allowed to, and nobody is
		return apperr.New(apperr.Forbidden, "%s: 1 is missing: this path is for the console's page; the API is at /v1/", pageHeader)
	}
	asked := *r
	asked.Host = host(r)
	if err := new(http.CrossOriginProtection).Check(&asked); err != nil {
		return apperr.Wrap(apperr.Forbidden, err, "the request is from another site's page")
	}
	return nil
}

// checkUser refuses what a page asks for whose user is not the session's any more, because somebody else has signed in in another
// tab of the browser: it would be done in a project that the page does not show.
func checkUser(r *http.Request, who domain.Identity) error {
	if shown := r.Header.Get(userHeader); shown != "" && shown != who.UserID+"/"+who.ProjectID {
		return apperr.New(apperr.Unauthenticated, "this browser is signed in as somebody else now, or to another project: load the page again")
	}
	return nil
}

// host is what the browser has asked for: what a proxy before us says, or what the request says itself. That is anybody's word,
// but not any page's: a browser lets none set it.
func host(r *http.Request) string {
	return cmp.Or(forwarded(r, "host"), first(r.Header.Get("X-Forwarded-Host")), r.Host)
}

// secure says whether the browser has asked by https. Where a proxy does not say, its page's origin does, which a browser sends
// with all that is no GET.
func secure(r *http.Request) bool {
	if proto := cmp.Or(forwarded(r, "proto"), first(r.Header.Get("X-Forwarded-Proto"))); proto != "" {
		return strings.EqualFold(proto, "https")
	}
	return r.TLS != nil || strings.HasPrefix(r.Header.Get("Origin"), "https://")
}

// first is what the proxy next to the browser has said.
func first(list string) string {
	text, _, _ := strings.Cut(list, ",")
	return strings.TrimSpace(text)
}

// forwarded is a part of what it has said by RFC 7239, as our gateway does: in a cluster, other proxies change the older headers.
func forwarded(r *http.Request, name string) string {
	for pair := range strings.SplitSeq(first(r.Header.Get("Forwarded")), ";") {
		if key, value, _ := strings.Cut(strings.TrimSpace(pair), "="); strings.EqualFold(key, name) {
			return strings.Trim(value, `"`)
		}
	}
	return ""
}

// loopback says whether the browser has asked its own machine.
func loopback(r *http.Request) bool {
	name := host(r)
	if alone, _, err := net.SplitHostPort(name); err == nil {
		name = alone
	}
	name = strings.Trim(name, "[]")
	return name == "localhost" || strings.HasSuffix(name, ".localhost") || net.ParseIP(name).IsLoopback()
}
