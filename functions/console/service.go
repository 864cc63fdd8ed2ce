package console

import (
	"cmp"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

// keystone is the part of OpenStack that this function needs.
type keystone interface {
	SignIn(context.Context, domain.Login) (domain.Secret, domain.Identity, error)
	Choose(ctx context.Context, token domain.Secret, projectID string) (domain.Secret, domain.Identity, error)
	ProjectsOf(ctx context.Context, token domain.Secret) ([]domain.Project, error)
	Validate(ctx context.Context, token domain.Secret) (domain.Identity, error)
	Revoke(ctx context.Context, token domain.Secret) error
}

type service struct {
	store postgres.Sessions // sealed
	cloud keystone
	admit func(domain.Identity) error // rejects projects that are not served
	idle  time.Duration               // after which an unused session ends
	known *lru.Cache[string, domain.Identity]
}

// maxKnown is how many sessions a replica knows.
const maxKnown = 10_000

func newService(
	store postgres.Sessions, cloud keystone, admit func(domain.Identity) error, idle time.Duration,
) service {
	known, _ := lru.New[string, domain.Identity](maxKnown) // a positive size is no error
	return service{store, cloud, admit, idle, known}
}

// revokeTimeout bounds the revocation of an unused token.
const revokeTimeout = 10 * time.Second

// SignIn creates a session from a password.
func (s service) SignIn(ctx context.Context, l domain.Login) (cookie domain.Secret, made domain.Session, err error) {
	token, who, err := s.login(ctx, l)
	if err != nil {
		return "", domain.Session{}, err
	}
	if cookie, made, err = s.start(ctx, domain.Session{Token: token, Ours: true, Who: who}, ""); err != nil {
		s.revoke(ctx, token)
	}
	return cookie, made, err
}

// SignInWith makes a session of a token that the user has already. It stays his: it is not revoked when the session
// ends.
func (s service) SignInWith(
	ctx context.Context, token domain.Secret,
) (cookie domain.Secret, made domain.Session, err error) {
	who, err := s.cloud.Validate(ctx, token)
	if err != nil {
		return "", domain.Session{}, err
	}
	return s.start(ctx, domain.Session{Token: token, Who: who}, "")
}

// start stores a session: in place of the one with the cookie old, if there is one.
func (s service) start(
	ctx context.Context, session domain.Session, old domain.Secret,
) (cookie domain.Secret, made domain.Session, err error) {
	if err := s.admit(session.Who); err != nil {
		return "", session, err
	}
	if session.Who.ProjectID == "" {
		return "", session, apperr.New(apperr.Forbidden, "this needs a token scoped to a project")
	}
	cookie = newCookie()
	key, err := keyOf(cookie)
	if err != nil {
		return "", session, err
	}
	sealed, err := key.seal(session)
	if err != nil {
		return "", session, err
	}
	if old == "" {
		session.Until, err = s.store.Start(ctx, session.Who.UserID, key.id, sealed, session.Who.ExpiresAt,
			domain.MaxSession)
		return cookie, session, err
	}
	replaced, err := keyOf(old)
	if err != nil {
		return "", session, err
	}
	session.Until, err = s.store.Replace(ctx, replaced.id, key.id, sealed, session.Who.ExpiresAt, domain.MaxSession)
	if apperr.CodeOf(err) == apperr.NotFound { // another request was first
		err = notSignedIn(err)
	}
	return cookie, session, err
}

// Projects lists the projects of a session's user that are served here, by name.
func (s service) Projects(ctx context.Context, session domain.Session) ([]domain.Project, error) {
	own, err := s.cloud.ProjectsOf(ctx, session.Token)
	served := s.served(own)
	slices.SortFunc(served, func(a, b domain.Project) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.ID, b.ID))
	})
	return served, err
}

// Switch replaces the session of a cookie by one in another project, with a token of its own, which ends with the
// first. If the process is killed before the answer, neither cookie has a session, and the user signs in again.
func (s service) Switch(
	ctx context.Context, oldCookie domain.Secret, old domain.Session, projectID string,
) (cookie domain.Secret, made domain.Session, err error) {
	served, err := s.Projects(ctx, old)
	if err != nil {
		return "", made, err
	}
	if !slices.ContainsFunc(served, func(p domain.Project) bool { return p.ID == projectID }) {
		ids := make([]string, len(served))
		for n, p := range served {
			ids[n] = p.ID
		}
		return "", made, apperr.InvalidField("project_id", "is no project of the user that is served here", ids...)
	}
	token, who, err := s.cloud.Choose(ctx, old.Token, projectID)
	if apperr.CodeOf(err) == apperr.Unauthenticated { // such as the token of an application credential
		err = apperr.Wrap(apperr.Forbidden, err, "Keystone gives no token of another project for the one that you "+
			"have signed in with: sign in again, with a password")
	}
	if err != nil {
		return "", made, err
	}
	cookie, made, err = s.start(ctx, domain.Session{Token: token, Ours: true, Who: who}, oldCookie)
	switch {
	case err != nil:
		s.revoke(ctx, token)
	case old.Ours:
		s.revoke(ctx, old.Token)
	}
	return cookie, made, err
}

// served are the projects that are served here.
func (s service) served(own []domain.Project) (served []domain.Project) {
	for _, p := range own {
		if s.admit(domain.Identity{ProjectID: p.ID, DomainID: p.DomainID}) == nil {
			served = append(served, p)
		}
	}
	return served
}

// login gets a token for a project: the one given with its domain, or one of the user's own.
func (s service) login(ctx context.Context, l domain.Login) (domain.Secret, domain.Identity, error) {
	if l.Project != "" && l.ProjectDomain != "" {
		return s.cloud.SignIn(ctx, l)
	}
	name := l.Project
	l.Project = ""
	unscoped, _, err := s.cloud.SignIn(ctx, l)
	if err != nil {
		return "", domain.Identity{}, err
	}
	defer s.revoke(ctx, unscoped)
	own, err := s.cloud.ProjectsOf(ctx, unscoped)
	if err != nil {
		return "", domain.Identity{}, err
	}
	project, err := s.choose(own, name)
	if err != nil {
		return "", domain.Identity{}, err
	}
	return s.cloud.Choose(ctx, unscoped, project.ID)
}

// choose finds a project of the user by its id or name; empty is the only one that is served here.
func (s service) choose(own []domain.Project, name string) (domain.Project, error) {
	served := s.served(own)
	var matching []domain.Project
	for _, p := range own {
		if name != "" && (p.ID == name || p.Name == name) {
			matching = append(matching, p)
		}
	}
	switch {
	case name == "" && len(served) == 1:
		return served[0], nil
	case len(matching) == 1:
		return matching[0], nil // its token is checked later, like any other
	case len(served) == 0:
		return domain.Project{}, apperr.New(apperr.Forbidden, "the user has a role in no project that is served here")
	}
	names := choices(served)
	detail := "choose one of: " + strings.Join(names, ", ")
	if name != "" && len(matching) == 0 {
		detail = fmt.Sprintf("%.64q is not a project of the user; ", name) + detail
	}
	return domain.Project{}, apperr.InvalidField("project", detail, names...)
}

// choices are the projects' names, or their ids where several have the same name.
func choices(projects []domain.Project) (names []string) {
	count := map[string]int{}
	for _, p := range projects {
		count[p.Name]++
	}
	for _, p := range projects {
		if count[p.Name] > 1 {
			p.Name = p.ID
		}
		names = append(names, p.Name)
	}
	slices.Sort(names)
	return names
}

// Open finds the session of a cookie. isUse keeps it alive.
func (s service) Open(ctx context.Context, cookie domain.Secret, isUse bool) (domain.Session, error) {
	key, err := keyOf(cookie)
	if err != nil {
		return domain.Session{}, err
	}
	sealed, until, err := s.store.Get(ctx, key.id, s.idle, isUse)
	if apperr.CodeOf(err) == apperr.NotFound {
		s.known.Remove(string(key.id))
		return domain.Session{}, notSignedIn(err)
	}
	if err != nil {
		return domain.Session{}, err
	}
	session, err := key.open(sealed)
	session.Until = until
	if err == nil {
		s.known.Add(string(key.id), session.Who)
	}
	return session, err
}

// Known returns whose session a cookie has, if it was opened before.
func (s service) Known(cookie domain.Secret) (domain.Identity, bool) {
	key, err := keyOf(cookie)
	if err != nil {
		return domain.Identity{}, false
	}
	who, found := s.known.Get(string(key.id))
	return who, found && time.Now().Before(who.ExpiresAt)
}

// SignOut ends the session of a cookie on every replica, and revokes its token if signing in created it. Without a
// session it does nothing.
func (s service) SignOut(ctx context.Context, cookie domain.Secret) (who domain.Identity, err error) {
	key, err := keyOf(cookie)
	if err != nil {
		return who, nil //nolint:nilerr // not a session
	}
	sealed, err := s.store.End(ctx, key.id)
	if apperr.CodeOf(err) == apperr.NotFound {
		return who, nil
	}
	if err != nil {
		return who, err
	}
	session, err := key.open(sealed)
	if err != nil {
		return who, nil //nolint:nilerr // the row was changed; it is deleted, and no one can decrypt it
	}
	if session.Ours {
		s.revoke(ctx, session.Token)
	}
	return session.Who, nil
}

// SignOutEverywhere ends all sessions of a session's user. The tokens of the others expire later, because only their
// cookies decrypt them.
func (s service) SignOutEverywhere(ctx context.Context, session domain.Session) error {
	if err := s.store.EndAll(ctx, session.Who.UserID); err != nil {
		return err
	}
	if session.Ours {
		s.revoke(ctx, session.Token)
	}
	return nil
}

// revoke revokes an unused token. If Keystone is unavailable the token expires later.
func (s service) revoke(ctx context.Context, token domain.Secret) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), revokeTimeout)
	defer cancel()
	if err := s.cloud.Revoke(ctx, token); err != nil {
		slog.WarnContext(ctx, "a token could not be revoked", "error", err)
	}
}

// A cookie has random bytes. The session's id and the key that encrypts the stored session are derived from them.
// Neither reveals the cookie.
const (
	cookieBytes = 32
	keyInfo     = "cloudfn console session 1" // another use of the cookie would be another key
)

func newCookie() domain.Secret {
	var secret [cookieBytes]byte
	_, _ = rand.Read(secret[:]) // never fails (Go 1.24)
	return domain.Secret(base64.RawURLEncoding.EncodeToString(secret[:]))
}

// sessionKey encrypts and decrypts one stored session.
type sessionKey struct {
	id   []byte
	aead cipher.AEAD
}

func keyOf(cookie domain.Secret) (sessionKey, error) {
	secret, err := base64.RawURLEncoding.Strict().DecodeString(cookie.Reveal())
	if err != nil || len(secret) != cookieBytes {
		return sessionKey{}, notSignedIn(nil)
	}
	id := sha256.Sum256(secret)
	derived, err := hkdf.Key(sha256.New, secret, nil, keyInfo, 32)
	if err != nil {
		return sessionKey{}, err
	}
	block, err := aes.NewCipher(derived)
	if err != nil {
		return sessionKey{}, err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	return sessionKey{id[:], aead}, err
}

// notSignedIn is the error for every invalid cookie.
func notSignedIn(cause error) error {
	return apperr.Wrap(apperr.Unauthenticated, cause, "no session, or the session has expired: sign in at /console/")
}

// content is the plaintext of a sealed session.
type content struct {
	Token string          `json:"token"`
	Ours  bool            `json:"ours"`
	Who   domain.Identity `json:"who"`
}

func (k sessionKey) seal(s domain.Session) ([]byte, error) {
	plain, err := json.Marshal(content{s.Token.Reveal(), s.Ours, s.Who})
	if err != nil {
		return nil, err
	}
	return k.aead.Seal(nil, nil, plain, k.id), nil //nolint:gosec // it makes a nonce of its own
}

// open fails when the row was changed.
func (k sessionKey) open(sealed []byte) (domain.Session, error) {
	plain, err := k.aead.Open(nil, nil, sealed, k.id)
	if err != nil {
		return domain.Session{}, notSignedIn(err)
	}
	var c content
	if err := json.Unmarshal(plain, &c); err != nil {
		return domain.Session{}, notSignedIn(err)
	}
	return domain.Session{Token: domain.Secret(c.Token), Ours: c.Ours, Who: c.Who}, nil
}
