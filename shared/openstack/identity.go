package openstack

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/gophercloud/gophercloud/v2"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// token is a token's body, without its catalog.
type token struct {
	ExpiresAt keystoneTime `json:"expires_at"`
	User      struct {
		ID   string `json:"id"`
		Name string `json:"name"`
	} `json:"user"`
	Project *struct {
		ID     string `json:"id"`
		Name   string `json:"name"`
		Domain struct {
			ID string `json:"id"`
		} `json:"domain"`
	} `json:"project"`
	Domain *struct {
		ID string `json:"id"`
	} `json:"domain"`
	System     map[string]bool `json:"system"`
	Credential *struct {
		Restricted  bool                `json:"restricted"`
		AccessRules []domain.AccessRule `json:"access_rules"`
	} `json:"application_credential"`
	Roles []struct {
		Name string `json:"name"`
	} `json:"roles"`
}

func (t token) identity() domain.Identity {
	id := domain.Identity{
		UserID: t.User.ID, UserName: t.User.Name, ExpiresAt: t.ExpiresAt.Time, System: t.System["all"],
	}
	for _, r := range t.Roles {
		id.Roles = append(id.Roles, r.Name)
	}
	if t.Credential != nil {
		id.AccessRules = t.Credential.AccessRules
	}
	switch {
	case t.Project != nil:
		id.ProjectID, id.ProjectName, id.DomainID = t.Project.ID, t.Project.Name, t.Project.Domain.ID
	case t.Domain != nil:
		id.DomainID = t.Domain.ID
	}
	return id
}

// Validate asks Keystone who a token is, with that token itself (GET /v3/auth/tokens; Keystone's policy lets
// a token look at itself), so that it takes no secret of ours. Without `nocatalog` Keystone would also build
// and send its whole catalog, and gophercloud cannot ask for that.
//
// Keystone validates a token of an application credential with access rules only for who promises to enforce them
// (OpenStack-Identity-Access-Rules): auth does.
//
// Keystone answers 403 for a token of a trust with impersonation: it says that its user is the trustor, and Keystone
// compares that with the trustee. No other call tells whose it is, and Keystone exchanges no trust's token for another
// one.
func (c *Cloud) Validate(ctx context.Context, subject domain.Secret) (domain.Identity, error) {
	s := Session{cloud: c, token: subject}
	keystone := &gophercloud.ServiceClient{ProviderClient: s.provider(), Endpoint: c.identity}
	var body struct {
		Token token `json:"token"`
	}
	_, err := keystone.Get(ctx, keystone.ServiceURL("auth", "tokens")+"?nocatalog", &body, &gophercloud.RequestOpts{
		MoreHeaders: map[string]string{
			"X-Subject-Token": subject.Reveal(), "OpenStack-Identity-Access-Rules": "1.0",
		},
		OkCodes: []int{http.StatusOK, http.StatusNonAuthoritativeInfo},
	})
	switch err = c.refusalOf(ctx, err); apperr.CodeOf(err) {
	case "":
	case apperr.NotFound:
		return domain.Identity{}, apperr.Wrap(apperr.Unauthenticated, err, "keystone does not know the token")
	case apperr.Forbidden:
		return domain.Identity{}, apperr.Wrap(apperr.Forbidden, err,
			"keystone does not let this token validate itself: tokens of trusts with impersonation are not supported")
	case apperr.Unauthenticated, apperr.Invalid:
		return domain.Identity{}, apperr.Wrap(apperr.Unauthenticated, err, "the token is invalid or expired")
	default:
		return domain.Identity{}, keystoneAway(err)
	}
	if body.Token.User.ID == "" {
		return domain.Identity{}, apperr.New(apperr.BadGateway, "keystone gave a token without a user")
	}
	return body.Token.identity(), nil
}

// keystoneAway turns whatever went wrong at Keystone's side into "ask again": it says nothing about the token.
func keystoneAway(err error) error {
	if code := apperr.CodeOf(err); code == apperr.ClientGone || code == apperr.RateLimited {
		return err
	}
	if _, says := errors.AsType[notKeystoneError](err); says {
		return err
	}
	e := apperr.Wrap(apperr.Unavailable, err, "keystone is not available")
	e.RetryAfter = defaultRetryAfter
	return e
}

// Account is somebody who may log in to a Cloud: a service account or a user.
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

// Prefixed names the variables of an account in an error as they are set: with a prefix, such as LEASES_.
func Prefixed(prefix string, err error) error {
	if err == nil {
		return nil
	}
	names := strings.NewReplacer("OS_CLIENT_", "OS_CLIENT_", "OS_", prefix+"OS_")
	return errors.New(names.Replace(err.Error()))
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

// CheckProject is NotFound when Keystone has no such project; it has a disabled one. Forbidden proves nothing: Keystone
// gives it to an account that may not ask, whether the project exists or not. A 404 that is not Keystone's own, such as
// that of a proxy before it, is Unavailable.
func (s *Session) CheckProject(ctx context.Context, id string) error {
	keystone := s.keystone()
	var body struct{}
	_, err := keystone.Get(ctx, keystone.ServiceURL("projects", url.PathEscape(id)), &body, nil)
	return s.confirmAbsent(ctx, err)
}

// confirmAbsent classifies what Keystone answered. NotFound is left of a 404 only if it is Keystone's own and Keystone
// is still reachable: any other 404, such as a proxy's, is Unavailable.
func (s *Session) confirmAbsent(ctx context.Context, err error) error {
	isKeystone := isKeystoneRefusal(err)
	if err = classify("keystone", err); apperr.CodeOf(err) != apperr.NotFound {
		return err
	}
	if !isKeystone {
		return keystoneAway(err)
	}
	if away := s.cloud.Reachable(ctx); away != nil {
		return away
	}
	return err
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
