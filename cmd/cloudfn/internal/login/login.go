// Package login gets the user's token: from Keystone, as every OpenStack client does, or from a file of its own until
// the token expires.
package login

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sethvargo/go-envconfig"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/files"
	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/openstack"
)

// Options say who logs in.
type Options struct {
	Env    func(string) (string, bool)                    // has OS_* and where the cache is
	Cloud  string                                         // instead of OS_CLOUD
	Prompt func(text string) (string, error)              // reads a password from the user; nil = no one can answer
	Wrap   func(next http.RoundTripper) http.RoundTripper // of the calls to Keystone; nil = as they are
}

// Login is one user's.
type Login struct {
	user   *openstack.User
	cache  cache
	latest stored // of this command, in case that no file can be written
	prompt func(text string) (string, error)
}

func denied(format string, args ...any) error { return exit.Errorf(exit.Denied, format, args...) }

// New reads who logs in. It calls no one.
func New(ctx context.Context, o Options) (*Login, error) {
	var cfg openstack.UserConfig
	env := envconfig.Lookuper(lookuper(o.Env))
	err := envconfig.ProcessWith(ctx, &envconfig.Config{Target: &cfg, Lookuper: env})
	if err != nil {
		return nil, denied("%w", err)
	}
	if o.Cloud != "" {
		cfg.Cloud = o.Cloud
	}
	if cfg.Cloud == "" && cfg.AuthURL == "" {
		if cfg.Cloud, err = onlyCloud(cfg.Config); err != nil {
			return nil, err
		}
	}
	user, err := openstack.NewUser(cfg, openstack.Options{Wrap: o.Wrap})
	if err != nil {
		return nil, denied("%w", err)
	}
	dir, err := cacheDir(o.Env)
	if err != nil {
		return nil, denied("%w", err)
	}
	return &Login{user: user, cache: cache{dir: dir}, prompt: o.Prompt}, nil
}

type lookuper func(string) (string, bool)

// Lookup implements envconfig.Lookuper.
func (l lookuper) Lookup(key string) (string, bool) { return l(key) }

// onlyCloud is the cloud when none is chosen: the one in clouds.yaml, if it has only one.
func onlyCloud(cfg openstack.Config) (string, error) {
	names, found, err := openstack.CloudNames(cfg)
	switch {
	case err != nil:
		return "", denied("%w", err)
	case len(names) == 1:
		return names[0], nil
	case len(names) > 0:
		const format = "no cloud is chosen: set OS_CLOUD or give --os-cloud one of %s (of %s)"
		return "", denied(format, strings.Join(names, ", "), found)
	}
	return "", denied("there is no login: set OS_CLOUD to a name in clouds.yaml, or OS_AUTH_URL, OS_USERNAME, " +
		"OS_PASSWORD and OS_PROJECT_NAME (the cloud's openrc file does)")
}

// Token gives the user's token. renew reports whether the previous one was rejected.
func (l *Login) Token(ctx context.Context, renew bool) (domain.Secret, error) {
	if given := l.user.Given(); given != "" {
		if renew {
			return "", denied("the token in OS_TOKEN or clouds.yaml is refused: it has expired, was revoked, " +
				"or is of another cloud")
		}
		return given, nil
	}
	if !renew {
		if stored, ok := l.cache.read(l.user.Name()); ok {
			return stored.Token, nil
		}
		if l.latest.isValid() {
			return l.latest.Token, nil
		}
	}
	session, err := l.Renew(ctx)
	return session.Token, err
}

// Session is a token and whose it is.
type Session struct {
	Token    domain.Secret
	Identity domain.Identity
}

// Renew gets another token from Keystone, and stores it.
func (l *Login) Renew(ctx context.Context) (Session, error) {
	if l.user.NeedsPassword() {
		if l.prompt == nil {
			return Session{}, denied("there is no password: set OS_PASSWORD")
		}
		password, err := l.prompt("Password: ")
		if err != nil {
			return Session{}, denied("%w", err)
		}
		l.user.SetPassword(domain.Secret(password))
	}
	token, who, err := l.user.Login(ctx)
	if err != nil {
		return Session{}, l.explain(ctx, err)
	}
	// This command can use it even if it cannot be stored.
	l.latest = stored{Token: token, ExpiresAt: who.ExpiresAt}
	_ = l.cache.write(l.user.Name(), l.latest)
	return Session{Token: token, Identity: who}, nil
}

// Forget removes the stored token, which stays valid in Keystone, and the names.
func (l *Login) Forget() error {
	return errors.Join(os.RemoveAll(l.namesDir()), l.cache.remove(l.user.Name()))
}

// NamesFile is the file for names that this login finds: there is one for each list of texts. Paths have no secret.
func (l *Login) NamesFile(of ...string) string {
	return filepath.Join(l.namesDir(), hash(of...)+".json")
}

func (l *Login) namesDir() string {
	return filepath.Join(l.cache.dir, "names-"+hash(l.user.Name(), l.user.Given().Reveal()))
}

func hash(texts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(texts, "\n")))
	return hex.EncodeToString(sum[:12])
}

// Warnings are what clouds.yaml says and cannot be followed.
func (l *Login) Warnings() []string { return l.user.Warnings() }

// IdentityURL is Keystone's.
func (l *Login) IdentityURL() string { return l.user.IdentityURL() }

// explain says what to do about a failed login.
func (l *Login) explain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	message := err.Error()
	if e, ok := errors.AsType[*apperr.Error](err); ok {
		message = e.Message
	}
	switch apperr.CodeOf(err) {
	case apperr.Unauthenticated, apperr.Forbidden, apperr.NotFound, apperr.Invalid:
		return denied("Keystone at %s refuses the login: is the user, the password, the project and the domain "+
			"right? (%s)", l.IdentityURL(), message)
	case apperr.Internal: // no call was made
		return denied("%w", err)
	}
	const format = "Keystone at %s does not answer: is OS_AUTH_URL right? (%s)"
	return exit.Errorf(exit.Unavailable, format, l.IdentityURL(), message)
}

// cache stores tokens in files that only their user can read, one for each login. The files and their names have no
// password.
type cache struct{ dir string }

// stored is what such a file holds.
type stored struct {
	Token     domain.Secret
	ExpiresAt time.Time
}

// isValid reports whether there is a token, and that it does not expire soon.
func (s stored) isValid() bool { return s.Token != "" && time.Until(s.ExpiresAt) >= margin }

// file is the JSON of stored: domain.Secret would not reveal the token.
type file struct {
	Token     string    `json:"token"`
	ExpiresAt time.Time `json:"expires_at"`
}

// margin is how long before its end a token counts as expired, so that it is valid during the whole call.
const margin = 2 * time.Minute

// cacheDir is CLOUDFN_CACHE_DIR, or else the system's place for such files.
func cacheDir(env func(string) (string, bool)) (string, error) {
	if dir, ok := env("CLOUDFN_CACHE_DIR"); ok && dir != "" {
		return dir, nil
	}
	if dir, ok := env("XDG_CACHE_HOME"); ok && filepath.IsAbs(dir) {
		return filepath.Join(dir, "cloudfn"), nil
	}
	home, ok := env("HOME")
	if !ok || home == "" {
		return "", errors.New("HOME is not set: set CLOUDFN_CACHE_DIR to a folder for tokens")
	}
	return filepath.Join(home, ".cache", "cloudfn"), nil
}

func (c cache) path(name string) string {
	return filepath.Join(c.dir, "token-"+hash(name)+".json")
}

// read gives a valid token. It ignores a file that others can read or write.
func (c cache) read(name string) (stored, bool) {
	info, err := os.Stat(c.path(name))
	if err != nil || info.Mode().Perm()&0o077 != 0 {
		return stored{}, false
	}
	text, err := os.ReadFile(c.path(name))
	var f file
	if err != nil || json.Unmarshal(text, &f) != nil {
		return stored{}, false
	}
	found := stored{Token: domain.Secret(f.Token), ExpiresAt: f.ExpiresAt}
	if !found.isValid() {
		return stored{}, false
	}
	return found, true
}

func (c cache) write(name string, s stored) error {
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return err
	}
	return files.Create(c.path(name), 0o600, func(w io.Writer) error {
		return json.NewEncoder(w).Encode(file{Token: s.Token.Reveal(), ExpiresAt: s.ExpiresAt})
	})
}

func (c cache) remove(name string) error {
	if err := os.Remove(c.path(name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
