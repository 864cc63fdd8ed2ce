// Package login gets the user's token: from Keystone, as every OpenStack client does, and for as long as it is good from a
// file that nobody else can read.
package login

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/sethvargo/go-envconfig"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/openstack"
)

// Options say who logs in.
type Options struct {
	Env   func(string) (string, bool) // OS_* and where the cache is
	Cloud string                      // instead of OS_CLOUD
	// Ask asks the user for a password; nil when there is nobody to ask.
	Ask func(prompt string) (string, error)
	// Wrap is put around the transport of the calls to Keystone; nil = nothing is.
	Wrap func(http.RoundTripper) http.RoundTripper
}

// Login is one user's.
type Login struct {
	user  *openstack.User
	cache cache
	last  kept // what this command has got, for where it cannot be kept in a file
	ask   func(prompt string) (string, error)
}

// Error is why nobody is logged in; it says what to do.
type Error struct{ error }

// Unwrap gives what happened.
func (e Error) Unwrap() error { return e.error }

func refuse(format string, args ...any) error { return Error{fmt.Errorf(format, args...)} }

// New reads who logs in, and calls nobody.
func New(ctx context.Context, o Options) (*Login, error) {
	var cfg openstack.UserConfig
	env := envconfig.Lookuper(lookuper(o.Env))
	if err := envconfig.ProcessWith(ctx, &envconfig.Config{Target: &cfg, Lookuper: env}); err != nil {
		return nil, Error{err}
	}
	if o.Cloud != "" {
		cfg.Cloud = o.Cloud
	}
	if cfg.Cloud == "" && cfg.AuthURL == "" {
		return nil, nobody(cfg.ConfigFile)
	}
	user, err := openstack.NewUser(cfg, openstack.Options{Wrap: o.Wrap})
	if err != nil {
		return nil, Error{err}
	}
	dir, err := cacheDir(o.Env)
	if err != nil {
		return nil, Error{err}
	}
	return &Login{user: user, cache: cache{dir: dir}, ask: o.Ask}, nil
}

type lookuper func(string) (string, bool)

// Lookup implements envconfig.Lookuper.
func (l lookuper) Lookup(key string) (string, bool) { return l(key) }

// nobody says how to say who one is.
func nobody(file string) error {
	names, found, err := openstack.CloudNames(file)
	switch {
	case err != nil:
		return Error{err}
	case len(names) > 0:
		return refuse("no cloud is chosen: set OS_CLOUD or give --os-cloud one of %s (of %s)", strings.Join(names, ", "), found)
	}
	return refuse("there is no login: set OS_CLOUD to a name in clouds.yaml, or OS_AUTH_URL, OS_USERNAME, OS_PASSWORD and OS_PROJECT_NAME (the cloud's openrc file does)")
}

// Token gives the user's token. renew says that the one before was refused.
func (l *Login) Token(ctx context.Context, renew bool) (domain.Secret, error) {
	if given := l.user.Given(); given != "" {
		if renew {
			return "", refuse("the token in OS_TOKEN or clouds.yaml is refused: it has expired, was taken back, or is of another cloud")
		}
		return given, nil
	}
	if !renew {
		if kept, ok := l.cache.read(l.user.Name()); ok {
			return kept.Token, nil
		}
		if l.last.good() {
			return l.last.Token, nil
		}
	}
	fresh, err := l.Fresh(ctx)
	return fresh.Token, err
}

// Session is a token and whose it is.
type Session struct {
	Token domain.Secret
	Who   domain.Identity
}

// Fresh asks Keystone for a token, and keeps it.
func (l *Login) Fresh(ctx context.Context) (Session, error) {
	if l.user.NeedsPassword() {
		if l.ask == nil {
			return Session{}, refuse("there is no password: set OS_PASSWORD")
		}
		password, err := l.ask("Password: ")
		if err != nil {
			return Session{}, Error{err}
		}
		l.user.SetPassword(domain.Secret(password))
	}
	token, who, err := l.user.Login(ctx)
	if err != nil {
		return Session{}, l.refused(ctx, err)
	}
	s := Session{Token: token, Who: who}
	// One that cannot be kept is good all the same, for this command.
	l.last = kept{Token: token, ExpiresAt: who.ExpiresAt}
	_ = l.cache.write(l.user.Name(), l.last)
	return s, nil
}

// Forget removes the token that is kept. It stays good in Keystone.
func (l *Login) Forget() error { return l.cache.remove(l.user.Name()) }

// IdentityURL is Keystone's.
func (l *Login) IdentityURL() string { return l.user.IdentityURL() }

func (l *Login) refused(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	switch code := apperr.CodeOf(err); code {
	case apperr.Unauthenticated, apperr.Forbidden, apperr.NotFound, apperr.Invalid:
		return refuse("Keystone at %s refuses the login: is the user, the password, the project and the domain right? (%s)", l.IdentityURL(), message(err))
	case apperr.Internal: // no call was made
		return Error{err}
	}
	return Away{fmt.Errorf("Keystone at %s does not answer: is OS_AUTH_URL right? (%s)", l.IdentityURL(), message(err))} //nolint:staticcheck // a name
}

// Away is that Keystone did not answer.
type Away struct{ error }

// Unwrap gives what happened.
func (e Away) Unwrap() error { return e.error }

func message(err error) string {
	if e, ok := errors.AsType[*apperr.Error](err); ok {
		return e.Message
	}
	return err.Error()
}
