package openstack

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/config/clouds"
	"sigs.k8s.io/yaml"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// UserConfig is what a user's client reads from its environment, as every OpenStack client does. With Config.Cloud set
// it comes from clouds.yaml (and secure.yaml beside it), and of the rest only a password that is missing there.
type UserConfig struct {
	Config
	Credentials
	AuthType    string        `env:"OS_AUTH_TYPE"` // only to reject ways to log in that are not supported
	Token       domain.Secret `env:"OS_TOKEN"`
	DomainID    string        `env:"OS_DOMAIN_ID"` // of the user and the project, where theirs are not named
	DomainName  string        `env:"OS_DOMAIN_NAME"`
	AppCredName string        `env:"OS_APPLICATION_CREDENTIAL_NAME"` // instead of its id, with the user's name
	Tenant      string        `env:"OS_TENANT_NAME"`                 // the project, in old files
	TenantID    string        `env:"OS_TENANT_ID"`
	Trust       string        `env:"OS_TRUST_ID"`
	System      string        `env:"OS_SYSTEM_SCOPE"`
}

// defaultDomain is the id that Keystone gives its first domain; every client takes it when none is named.
const defaultDomain = "default"

// authTypes are the ways to log in that there are here, by all the names that OpenStack's clients have for them.
var authTypes = []string{"", "password", "v3password", "token", "v3token", "v3applicationcredential"}

// User is somebody who may log in to a Cloud.
type User struct {
	cloud *Cloud
	auth  gophercloud.AuthOptions
}

// NewUser prepares a login, and makes no call.
func NewUser(cfg UserConfig, opts Options) (*User, error) {
	if err := cfg.checkType(); err != nil {
		return nil, err
	}
	cloud, err := New(cfg.Config, opts)
	if err != nil {
		return nil, err
	}
	u := &User{cloud: cloud}
	if cfg.Cloud != "" {
		u.auth, _, _, err = clouds.Parse(cfg.parseOptions()...)
		if u.NeedsPassword() { // the one thing that many keep out of the file
			u.SetPassword(cfg.Password)
		}
	} else {
		u.auth = cfg.auth()
	}
	u.auth.TenantID, u.auth.TenantName = "", "" // the scope says it
	u.byDefault()
	return u, err
}

// checkType rejects unsupported ways to log in: the password of another one must not reach Keystone.
func (c UserConfig) checkType() error {
	name, kind := "OS_AUTH_TYPE", c.AuthType
	if c.Cloud != "" {
		known, _, _ := readClouds(c.ConfigFile) // gophercloud says what is wrong with the file
		name, kind = "auth_type of the cloud "+c.Cloud, string(known.Clouds[c.Cloud].AuthType)
	}
	if !slices.Contains(authTypes, kind) {
		return fmt.Errorf("%s is %q: it must be one of %s", name, kind, strings.Join(authTypes[1:], ", "))
	}
	return nil
}

func (c UserConfig) auth() gophercloud.AuthOptions {
	auth := gophercloud.AuthOptions{
		UserID: c.UserID, Username: c.Username, Password: c.Password.Reveal(), TokenID: c.Token.Reveal(),
		DomainID: cmp.Or(c.UserDomID, c.DomainID), DomainName: cmp.Or(c.UserDomain, c.DomainName),
		ApplicationCredentialID: c.AppCredID, ApplicationCredentialName: c.AppCredName,
		ApplicationCredentialSecret: c.AppCred.Reveal(),
	}
	switch {
	case c.Trust != "":
		auth.Scope = &gophercloud.AuthScope{TrustID: c.Trust}
	case c.System == "all":
		auth.Scope = &gophercloud.AuthScope{System: true}
	case cmp.Or(c.ProjectID, c.TenantID) != "":
		auth.Scope = &gophercloud.AuthScope{ProjectID: cmp.Or(c.ProjectID, c.TenantID)}
	case cmp.Or(c.Project, c.Tenant) != "":
		auth.Scope = &gophercloud.AuthScope{
			ProjectName: cmp.Or(c.Project, c.Tenant),
			DomainID:    cmp.Or(c.ProjectDoID, c.DomainID), DomainName: cmp.Or(c.ProjectDom, c.DomainName),
		}
	}
	return auth
}

// byDefault names the domains that are not named, and leaves one name where there are two.
func (u *User) byDefault() {
	a := &u.auth
	if a.DomainID != "" || a.UserID != "" {
		a.DomainName = ""
	}
	if a.UserID != "" {
		a.DomainID = ""
	}
	if a.Username != "" && a.DomainID == "" && a.DomainName == "" {
		a.DomainID = defaultDomain
	}
	s := a.Scope
	switch {
	case s == nil || s.ProjectName == "":
	case s.DomainID != "":
		s.DomainName = ""
	case s.DomainName == "":
		if s.DomainID, s.DomainName = a.DomainID, a.DomainName; s.DomainID == "" && s.DomainName == "" {
			s.DomainID = defaultDomain
		}
	}
	// A credential has its own scope, and Keystone takes none beside it.
	if a.ApplicationCredentialSecret != "" {
		a.Scope = nil
	}
}

// Given is the token that the user has given instead of a password. It may be used as it is.
func (u *User) Given() domain.Secret {
	if u.auth.Password != "" || u.auth.ApplicationCredentialSecret != "" {
		return ""
	}
	return domain.Secret(u.auth.TokenID)
}

// NeedsPassword says that nothing but the password is missing.
func (u *User) NeedsPassword() bool {
	a := u.auth
	return a.Password == "" && a.TokenID == "" && a.ApplicationCredentialSecret == "" &&
		(a.Username != "" || a.UserID != "")
}

// SetPassword is for one that the user has typed.
func (u *User) SetPassword(password domain.Secret) { u.auth.Password = password.Reveal() }

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

// Login asks Keystone for a token, and says who it is.
func (u *User) Login(ctx context.Context) (domain.Secret, domain.Identity, error) {
	a := u.auth
	switch {
	case a.ApplicationCredentialSecret != "":
		a.TokenID = ""
		if a.ApplicationCredentialID != "" {
			a.UserID, a.Username, a.DomainID, a.DomainName, a.ApplicationCredentialName = "", "", "", "", ""
		}
	case a.Password != "":
		a.TokenID = ""
	case a.TokenID != "": // for another scope
		a.UserID, a.Username, a.DomainID, a.DomainName = "", "", "", ""
	default:
		return "", domain.Identity{}, errors.New("no credentials: set OS_CLOUD, or OS_USERNAME and OS_PASSWORD, " +
			"OS_APPLICATION_CREDENTIAL_ID and _SECRET, or OS_TOKEN")
	}
	session, token, err := u.cloud.loginAs(ctx, &a)
	if err != nil {
		return "", domain.Identity{}, err
	}
	return session.token, token.identity(), nil
}

// CloudNames are the clouds that clouds.yaml knows, and the file's name; none when there is no such file.
func CloudNames(file string) (names []string, found string, err error) {
	known, found, err := readClouds(file)
	return slices.Sorted(maps.Keys(known.Clouds)), found, err
}

// readClouds reads clouds.yaml where it is looked for; nothing when there is no such file.
func readClouds(file string) (known clouds.Clouds, found string, err error) {
	files := []string{file}
	if file == "" {
		config, err := os.UserConfigDir()
		if err != nil {
			config = ""
		}
		files = []string{"clouds.yaml", filepath.Join(config, "openstack", "clouds.yaml"), "/etc/openstack/clouds.yaml"}
	}
	for _, file := range files {
		text, err := os.ReadFile(file) //nolint:gosec // the user names it
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return known, file, err
		}
		if err := yaml.Unmarshal(text, &known); err != nil {
			return known, file, fmt.Errorf("%s: %w", file, err)
		}
		return known, file, nil
	}
	return known, "", nil
}
