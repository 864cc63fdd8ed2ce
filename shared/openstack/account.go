package openstack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gophercloud/gophercloud/v2"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/flow"
)

// Account may log in to a Cloud: a service account or a user.
type Account struct {
	cloud *Cloud
	settings
}

// Account prepares a service account. With Config.Cloud set its credentials come from clouds.yaml.
func (c *Cloud) Account(cfg Config, credentials Credentials) (*Account, error) {
	set, err := cfg.read(UserConfig{Credentials: credentials})
	switch {
	case err != nil:
		return nil, err
	case set.isComplete():
		return &Account{c, set}, nil
	case cfg.Cloud != "":
		return nil, fmt.Errorf("OS_CLOUD is %q: that cloud has nothing to log in with by %s", cfg.Cloud, set.method)
	}
	return nil, errors.New("no service account: set OS_USERNAME and OS_PASSWORD, OS_APPLICATION_CREDENTIAL_ID and " +
		"_SECRET, or OS_CLOUD")
}

// IsCredential reports whether the account logs in with an application credential.
func (a *Account) IsCredential() bool { return a.method == byCredential }

// Variable is the one that names the account.
func (a *Account) Variable() string {
	switch {
	case a.source != "":
		return "OS_CLOUD"
	case a.auth.ApplicationCredentialID != "":
		return "OS_APPLICATION_CREDENTIAL_ID"
	case a.method == byCredential:
		return "OS_APPLICATION_CREDENTIAL_NAME"
	case a.auth.UserID != "":
		return "OS_USER_ID"
	}
	return "OS_USERNAME"
}

// Login opens a session with the account's own scope, or none.
func (a *Account) Login(ctx context.Context) (*Session, error) {
	s, err := a.cloud.login(ctx, &a.auth)
	if err != nil {
		return nil, fmt.Errorf("login as %s at %s: %w", a, a.cloud.IdentityURL(), err)
	}
	return s, nil
}

// String names the account, without any secret, for the log.
func (a *Account) String() string {
	switch domain, id := a.auth.DomainName, a.auth.DomainID; {
	case a.auth.ApplicationCredentialID != "":
		return "the application credential " + a.auth.ApplicationCredentialID
	case a.auth.ApplicationCredentialName != "":
		return "the application credential " + a.auth.ApplicationCredentialName + " of the user " + a.auth.Username
	case a.method == byToken:
		return "the user of the token"
	case a.auth.UserID != "":
		return "the user with the id " + a.auth.UserID
	case domain != "":
		return "the user " + a.auth.Username + " of the domain " + domain
	case id != "":
		return "the user " + a.auth.Username + " of the domain with the id " + id
	}
	return "the user " + a.auth.Username
}

// In opens a session in one project from another session of the account, without its password: Keystone
// then has no hash to work out, which is most of what a login costs it. A session that is there already stays as it
// is: the token of an application credential cannot be exchanged, and is good for its own project.
func (s *Session) In(ctx context.Context, projectID string) (*Session, error) {
	if s.project == projectID {
		return s, nil
	}
	return s.cloud.login(ctx, &gophercloud.AuthOptions{
		TokenID: s.token.Reveal(), Scope: &gophercloud.AuthScope{ProjectID: projectID},
	})
}

func (c *Cloud) login(ctx context.Context, auth *gophercloud.AuthOptions) (*Session, error) {
	s, _, err := c.loginAs(ctx, auth)
	return s, err
}

// loginAs also gives what Keystone says of the new token.
func (c *Cloud) loginAs(ctx context.Context, auth *gophercloud.AuthOptions) (*Session, token, error) {
	scope, err := auth.ToTokenV3ScopeMap()
	if err != nil {
		return nil, token{}, err
	}
	request, err := auth.ToTokenV3CreateMap(scope)
	if err != nil {
		return nil, token{}, err
	}
	return c.create(ctx, request)
}

// create has Keystone make a token.
func (c *Cloud) create(ctx context.Context, request map[string]any) (*Session, token, error) {
	anonymous := Session{cloud: c}
	keystone := &gophercloud.ServiceClient{ProviderClient: anonymous.provider(), Endpoint: c.identity}
	var body struct {
		Token struct {
			token
			Catalog catalog `json:"catalog"`
		} `json:"token"`
	}
	// Not by gophercloud's tokens.Create, whose Extract panics on a struct that embeds one of ours.
	resp, err := keystone.Post(ctx, keystone.ServiceURL("auth", "tokens"), request, &body, &gophercloud.RequestOpts{
		OmitHeaders: []string{"X-Auth-Token"},
	})
	if err = c.refusalOf(ctx, err); err != nil {
		return nil, token{}, err
	}
	who := body.Token.identity()
	s := c.As(domain.Secret(resp.Header.Get("X-Subject-Token")), who.UserID+"/"+who.ProjectID+"/"+who.DomainID)
	s.project, s.userID, s.catalog, s.actsAs = who.ProjectID, who.UserID, body.Token.Catalog, body.Token.actsAs()
	return s, body.Token.token, nil
}

// keptFor is how long a Kept session is used: shorter than any token lives.
const keptFor = 20 * time.Minute

// Kept keeps a session of a service account from one event to the next. S is what the function needs of the session.
type Kept[S any] struct {
	login  func(context.Context) (S, error)
	shared flow.Shared[*opened[S]]
}

type opened[S any] struct {
	session S
	at      time.Time
}

// Keep returns a Kept that has no session yet.
func Keep[S any](login func(context.Context) (S, error)) *Kept[S] { return &Kept[S]{login: login} }

// KeepSession returns a Kept of whole sessions.
func KeepSession(a *Account) *Kept[*Session] { return &Kept[*Session]{login: a.Login} }

// Session returns the session, and logs in when no session is kept.
func (k *Kept[S]) Session(ctx context.Context) (session S, err error) {
	kept, err := k.shared.Get(ctx, nil, k.open)
	if err == nil && time.Since(kept.at) >= keptFor {
		kept, err = k.shared.Get(ctx, kept, k.open)
	}
	if err != nil {
		return session, err
	}
	return kept.session, nil
}

func (k *Kept[S]) open(ctx context.Context) (*opened[S], error) {
	session, err := k.login(ctx)
	if err != nil {
		return nil, apperr.Wrap(apperr.Unavailable, err, "the service account cannot log in")
	}
	return &opened[S]{session, time.Now()}, nil
}

// Forget drops the session after an answer 401: its token was revoked, or Keystone's keys were rotated.
func (k *Kept[S]) Forget(err error) {
	if apperr.CodeOf(err) == apperr.Unauthenticated {
		k.shared.Forget(k.shared.Current())
	}
}

// UserConfig is what a user's client reads from its environment, as every OpenStack client does. With Config.Cloud set
// it comes from clouds.yaml (and secure.yaml beside it), and of the rest only a password that is missing there.
type UserConfig struct {
	Config
	Credentials
	Token domain.Secret `env:"OS_TOKEN"` // a service account outlives any token, so it has none
}

// User may log in to a Cloud, and may still have to type a password.
type User struct{ Account }

// NewUser prepares a login, and makes no call.
func NewUser(cfg UserConfig, opts Options) (*User, error) {
	set, err := cfg.read(cfg)
	if err != nil {
		return nil, err
	}
	cloud, err := New(cfg.Config, opts)
	if err != nil {
		return nil, err
	}
	return &User{Account{cloud, set}}, nil
}

// Given is the token that the user has given instead of a password. It may be used as it is.
func (u *User) Given() domain.Secret { return domain.Secret(u.auth.TokenID) }

// NeedsPassword reports whether nothing but the password is missing.
func (u *User) NeedsPassword() bool { return u.lacksPassword() }

// SetPassword is for one that the user has typed.
func (u *User) SetPassword(password domain.Secret) { u.auth.Password = password.Reveal() }

// Warnings are what clouds.yaml says and cannot be followed.
func (u *User) Warnings() []string { return u.cloud.Warnings() }

// IdentityURL is Keystone's.
func (u *User) IdentityURL() string { return u.cloud.IdentityURL() }

// Name says who would log in to what, without any secret: the same for the same login, so that its token can be kept
// under it.
func (u *User) Name() string {
	a := u.auth
	scope, _ := json.Marshal(a.Scope) //nolint:errchkjson // a struct of strings
	return strings.Join([]string{
		u.IdentityURL(), a.UserID, a.Username, a.DomainID, a.DomainName, a.ApplicationCredentialID,
		a.ApplicationCredentialName, string(scope),
	}, "\n")
}

// Login gets a token from Keystone, and returns whose it is.
func (u *User) Login(ctx context.Context) (domain.Secret, domain.Identity, error) {
	if !u.isComplete() {
		return "", domain.Identity{}, errors.New("no credentials: set OS_CLOUD, or OS_USERNAME and OS_PASSWORD, " +
			"OS_APPLICATION_CREDENTIAL_ID and _SECRET, or OS_TOKEN")
	}
	session, token, err := u.cloud.loginAs(ctx, &u.auth)
	if err != nil {
		return "", domain.Identity{}, err
	}
	return session.token, token.identity(), nil
}

// SignIn gets a token by a user's password: scoped to l.Project, which needs its domain, or unscoped, to choose among
// the user's projects. All rejections are the same error: it must not show whether the user exists, nor repeat the
// input.
func (c *Cloud) SignIn(ctx context.Context, l domain.Login) (domain.Secret, domain.Identity, error) {
	auth := gophercloud.AuthOptions{Username: l.User, DomainName: l.UserDomain, Password: l.Password.Reveal()}
	scope := any("unscoped") // without it, it would be one of the user's default project
	if l.Project != "" {
		scope = map[string]any{"project": map[string]any{
			"name":   l.Project,
			"domain": map[string]any{"name": l.ProjectDomain},
		}}
	}
	return c.signIn(ctx, &auth, scope)
}

// Choose exchanges a token for one of a project.
func (c *Cloud) Choose(
	ctx context.Context, token domain.Secret, projectID string,
) (domain.Secret, domain.Identity, error) {
	scope := map[string]any{"project": map[string]any{"id": projectID}}
	return c.signIn(ctx, &gophercloud.AuthOptions{TokenID: token.Reveal()}, scope)
}

func (c *Cloud) signIn(
	ctx context.Context, auth *gophercloud.AuthOptions, scope any,
) (domain.Secret, domain.Identity, error) {
	request, err := auth.ToTokenV3CreateMap(nil)
	if err != nil {
		return "", domain.Identity{}, apperr.Wrap(apperr.Internal, err, "internal error")
	}
	if inner, ok := request["auth"].(map[string]any); ok {
		inner["scope"] = scope
	}
	session, t, err := c.create(ctx, request)
	switch apperr.CodeOf(err) {
	case "":
		return session.token, t.identity(), nil
	case apperr.Unauthenticated, apperr.Forbidden, apperr.NotFound, apperr.Invalid:
		cause := apperr.As(err).Cause // without Keystone's own words, which may repeat the request's
		return "", domain.Identity{}, apperr.Wrap(apperr.Unauthenticated, cause,
			"Keystone does not accept this: the user, the password, a domain or the project is wrong, "+
				"or the user is disabled")
	}
	return "", domain.Identity{}, keystoneAway(err)
}

// ProjectsOf lists the enabled projects in which the token's user has a role.
func (c *Cloud) ProjectsOf(ctx context.Context, token domain.Secret) ([]domain.Project, error) {
	found, truncated, err := c.As(token, "").listProjects(ctx, "auth/projects", nil)
	if truncated {
		err = errTruncated("projects of its user")
	}
	return usable(found, ""), err
}

// Revoke revokes a token. An ended token is no error.
func (c *Cloud) Revoke(ctx context.Context, token domain.Secret) error {
	keystone := c.As(token, "").keystone()
	_, err := keystone.Delete(ctx, keystone.ServiceURL("auth", "tokens"), &gophercloud.RequestOpts{
		MoreHeaders: map[string]string{"X-Subject-Token": token.Reveal()},
	})
	if err = classify("keystone", err); apperr.CodeOf(err) == apperr.Unauthenticated ||
		apperr.CodeOf(err) == apperr.NotFound {
		return nil
	}
	return err
}
