package console

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

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
	httpx.Serve[projectsInput, httpx.Value[Projects]](api, huma.Operation{
		OperationID: "listSessionProjects", Method: http.MethodGet, Path: "/console/session/projects", Tags: tags,
		Security: []map[string][]string{withSession}, Middlewares: httpx.Before(isFromPage),
		Summary: "List the projects of who is signed in",
		Responses: httpx.Answers(map[int]string{
			200: "Those that are served here, by name.", 400: "", 401: "No session, or the session has expired.",
			403: "The request is another page's.", 502: "",
		}),
	}, h.projects)
	httpx.Serve[switchInput, httpx.Value[Session]](api, huma.Operation{
		OperationID: "switchProject", Method: http.MethodPatch, Path: "/console/session", Tags: tags,
		Security: []map[string][]string{withSession}, Middlewares: httpx.Before(isFromPage),
		Summary: "Switch to another project",
		Responses: httpx.Answers(map[int]string{
			200: "The new session, and its cookie. The old one has ended.",
			400: "The user has no role in the project: `errors` lists those that may be chosen.",
			401: "No session, or the session has expired.",
			403: "The request is another page's, or Keystone gives no token of another project for the session's.",
			429: "", 502: "",
		}),
	}, h.switchProject)
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
	if _, err := h.svc.SignOut(ctx, cookieOf(httpx.RequestOf(ctx))); err != nil { // the new cookie must be sent
		slog.WarnContext(ctx, "the replaced session could not be ended: it ends when it expires", "error", err)
	}
	return begin(ctx, http.StatusCreated, cookie, session)
}

// begin answers with a new session and its cookie.
func begin(
	ctx context.Context, status int, cookie domain.Secret, session domain.Session,
) (httpx.Response, error) {
	resp, err := show(status, session)
	setCookie(resp.Header, httpx.RequestOf(ctx), cookie)
	return resp, err
}

// Projects are those that a user may switch to.
type Projects struct {
	Projects []Named `json:"projects"`
}

type projectsInput struct{ PageInput }

func (h handler) projects(ctx context.Context, _ *projectsInput) (httpx.Response, error) {
	r := httpx.RequestOf(ctx)
	session, err := h.svc.Open(ctx, cookieOf(r), isUse(r))
	if err != nil {
		return httpx.Response{}, err
	}
	found, err := h.svc.Projects(ctx, session)
	if err != nil {
		return httpx.Response{}, err
	}
	resp, err := httpx.JSON(http.StatusOK, Projects{
		httpx.Each(found, func(p domain.Project) Named { return Named{p.ID, p.Name} }),
	})
	resp.Caller = session.Who
	return resp, err
}

type switchInput struct {
	PageInput
	Body SwitchProject
}

// SwitchProject is the body of PATCH /console/session.
type SwitchProject struct {
	ProjectID string `json:"project_id" maxLength:"64" pattern:"^[!-~]+$" doc:"The project to switch to."`
}

func (h handler) switchProject(ctx context.Context, in *switchInput) (httpx.Response, error) {
	r := httpx.RequestOf(ctx)
	old, err := h.svc.Open(ctx, cookieOf(r), true)
	if err != nil {
		return httpx.Response{}, err
	}
	if err := checkUser(r, old.Who); err != nil {
		return httpx.Response{}, err
	}
	if err := h.signIns.Take(ctx, domain.AddressSource(httpx.ClientAddress(ctx)), "this address"); err != nil {
		return httpx.Response{}, err
	}
	cookie, session, err := h.svc.Switch(ctx, cookieOf(r), old, in.Body.ProjectID)
	if err != nil {
		return httpx.Response{}, err
	}
	return begin(ctx, http.StatusOK, cookie, session)
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
