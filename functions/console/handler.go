package console

import (
	"net/http"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

type handler struct {
	svc       service
	functions http.RoundTripper // the way to them
	files     map[string]file   // the page and what belongs to it, by name
}

const (
	pagePath = "/console/"
	apiPath  = "/console/api"
)

func routes(h handler) []httpx.Route {
	list := []httpx.Route{
		// The page says what is wrong when Postgres is away, so it does not wait for it. Whoever looks at it does nothing yet.
		static("GET /{$}", toPage), static("GET /console", toPage),
		static("GET "+pagePath+"{$}", h.file), static("GET "+pagePath+"{file}", h.file),
		httpx.Handle("POST /console/session", h.signIn),
		httpx.Handle("GET /console/session", h.session),
		httpx.Handle("DELETE /console/session", h.signOut),
		httpx.Handle(apiPath+"/{path...}", h.relay),
	}
	for i := range list {
		list[i].Public = true // a session stands in for the token
	}
	return list
}

func static(pattern string, serve func(*http.Request) (httpx.Response, error)) httpx.Route {
	route := httpx.Handle(pattern, serve)
	route.Probe = true
	return route
}

// toPage leads who opens the base URL in a browser to the page.
func toPage(r *http.Request) (httpx.Response, error) {
	resp := httpx.Response{Status: http.StatusFound, Header: http.Header{}, ContentType: "text/plain; charset=utf-8", Body: []byte("see " + pagePath + "\n")}
	resp.Header.Set("Location", pagePath)
	return resp, nil
}

// sessionAnswer is who is signed in. The token is not in it.
type sessionAnswer struct {
	User      named     `json:"user"`
	Project   named     `json:"project"`
	Roles     []string  `json:"roles"`
	ExpiresAt time.Time `json:"expires_at"`
}

type named struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

func (h handler) signIn(r *http.Request) (httpx.Response, error) {
	if err := checkPage(r); err != nil {
		return httpx.Response{}, err
	}
	if !secure(r) && !loopback(r) {
		return httpx.Response{}, apperr.New(apperr.Forbidden, "sign in over https: this request came by plain http, which anybody on the way can read "+
			"(if there is a proxy that takes https, it must say so in X-Forwarded-Proto)")
	}
	in, err := httpx.Body[signIn](r)
	if err != nil {
		return httpx.Response{}, err
	}
	if err := in.check(); err != nil {
		return httpx.Response{}, err
	}
	var made domain.Secret
	var session domain.Session
	if in.Token != "" {
		made, session, err = h.svc.SignInWith(r.Context(), in.Token)
	} else {
		made, session, err = h.svc.SignIn(r.Context(), in.login())
	}
	if err != nil {
		return httpx.Response{}, err
	}
	if _, err := h.svc.SignOut(r.Context(), cookieOf(r)); err != nil { // of the session that this one takes the place of
		return httpx.Response{}, err
	}
	resp, err := show(http.StatusCreated, session)
	setCookie(resp.Header, r, made)
	return resp, err
}

func (h handler) session(r *http.Request) (httpx.Response, error) {
	session, err := h.svc.Open(r.Context(), cookieOf(r))
	if err != nil {
		return httpx.Response{}, err
	}
	return show(http.StatusOK, session)
}

func (h handler) signOut(r *http.Request) (httpx.Response, error) {
	if err := checkPage(r); err != nil {
		return httpx.Response{}, err
	}
	who, err := h.svc.SignOut(r.Context(), cookieOf(r))
	if err != nil {
		return httpx.Response{}, err
	}
	resp := httpx.Response{Status: http.StatusNoContent, Header: http.Header{}, Caller: who}
	setCookie(resp.Header, r, "")
	return resp, nil
}

func show(status int, s domain.Session) (httpx.Response, error) {
	roles := s.Who.Roles
	if roles == nil {
		roles = []string{}
	}
	resp, err := httpx.JSON(status, sessionAnswer{
		User: named{s.Who.UserID, s.Who.UserName}, Project: named{s.Who.ProjectID, s.Who.ProjectName}, Roles: roles, ExpiresAt: s.Until,
	})
	resp.Caller = s.Who
	return resp, err
}
