package openstack

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// UserConfig is what a user's client reads from its environment, as every OpenStack client does. With Config.Cloud set
// it comes from clouds.yaml (and secure.yaml beside it), and of the rest only a password that is missing there.
type UserConfig struct {
	Config
	Credentials
	Token domain.Secret `env:"OS_TOKEN"` // a service account outlives any token, so it has none
}

// User is somebody who may log in to a Cloud, and may still have to type a password.
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

// Login asks Keystone for a token, and says who it is.
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
