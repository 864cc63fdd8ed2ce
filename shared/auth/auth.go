// Package auth finds out who calls: it validates with Keystone the caller's token, with that token itself,
// remembers the answer for a short time, and applies the operator's allow list.
package auth

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/hashicorp/golang-lru/v2/expirable"
	"golang.org/x/sync/singleflight"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// Config is what the operator decides about callers.
type Config struct {
	// Ids of the projects that are served and counted; when empty, all.
	AllowedProjects []string `env:"ALLOWED_PROJECTS"`
	// Ids of the domains that are served and counted; a project must pass both lists.
	AllowedDomains []string `env:"ALLOWED_DOMAINS"`
	// Names of the roles that permit changes, in any case. Keystone adds the roles that a role implies to its tokens; a
	// token without any of these only reads.
	WriteRoles []string `env:"WRITE_ROLES, default=member,manager,admin"`
	// Service type by which the access rules of application credentials name this API.
	AccessRulesService string `env:"ACCESS_RULES_SERVICE, default=cloudfn"`
}

// Validate refuses a Config that cannot work.
func (c Config) Validate() error {
	// An empty project id is what a whole domain's token has: "a," would let all of those in.
	if slices.Contains(c.AllowedProjects, "") || slices.Contains(c.AllowedDomains, "") {
		return errors.New("ALLOWED_PROJECTS and ALLOWED_DOMAINS are lists of ids, such as a,b: one of the ids is empty")
	}
	if slices.Contains(c.WriteRoles, "") {
		return errors.New("WRITE_ROLES is a list of names of roles, such as member,admin: one of the names is empty")
	}
	return nil
}

// Allows reports whether the lists let a project of a domain in. projectID "" is a token for a whole domain, which a
// list of projects does not let in.
func (c Config) Allows(projectID, domainID string) bool {
	return (len(c.AllowedProjects) == 0 || slices.Contains(c.AllowedProjects, projectID)) &&
		(len(c.AllowedDomains) == 0 || slices.Contains(c.AllowedDomains, domainID))
}

// Unserved returns the projects that the lists do not let in. A project whose domain is unknown is judged by its id.
func (c Config) Unserved(all []domain.Remains) (list []domain.Remains) {
	byID := Config{AllowedProjects: c.AllowedProjects}
	for _, r := range all {
		if !c.Allows(r.ProjectID, r.DomainID) && (r.DomainID != "" || !byID.Allows(r.ProjectID, "")) {
			list = append(list, r)
		}
	}
	return list
}

// writeRoles returns those of the roles that permit changes. Keystone and oslo.policy ignore case in names of roles.
func (c Config) writeRoles(roles []string) (list []string) {
	for _, role := range roles {
		if slices.ContainsFunc(c.WriteRoles, func(name string) bool { return strings.EqualFold(name, role) }) {
			list = append(list, role)
		}
	}
	return list
}

const (
	maxToken    = 8 << 10 // a PKI token of old had that much; a Fernet token has 200 bytes
	maxCached   = 10_000
	tokenTTL    = time.Minute // of a token that Keystone accepted: a revoked one may work for so long
	negativeTTL = 5 * time.Second
	callTimeout = 15 * time.Second
)

// Authenticator answers who a token is. It is safe for concurrent use and one per process.
type Authenticator struct {
	cfg      Config
	validate func(context.Context, domain.Secret) (domain.Identity, error)
	now      func() time.Time
	key      [32]byte // of this process: a memory dump does not give tokens away
	accepted *lru.Cache[[32]byte, accepted]
	refused  *expirable.LRU[[32]byte, error]
	flight   singleflight.Group
}

// New makes an Authenticator; validate calls Keystone.
func New(cfg Config, validate func(context.Context, domain.Secret) (domain.Identity, error)) *Authenticator {
	known, _ := lru.New[[32]byte, accepted](maxCached) // a positive size is no error
	a := &Authenticator{
		accepted: known, cfg: cfg, validate: validate, now: time.Now,
		refused: expirable.NewLRU[[32]byte, error](maxCached, nil, negativeTTL),
	}
	_, _ = rand.Read(a.key[:]) // never fails (Go 1.24)
	return a
}

// Authenticate finds the identity of a request and puts it and the token into the context.
func (a *Authenticator) Authenticate(ctx context.Context, r *http.Request) (context.Context, error) {
	token, err := tokenOf(r.Header)
	if err != nil {
		return ctx, err
	}
	who, err := a.identify(ctx, token)
	if err != nil {
		return ctx, err
	}
	ctx = context.WithValue(ctx, contextKey{}, caller{who, token})
	if err := a.cfg.Admit(who); err != nil {
		return ctx, err
	}
	return ctx, a.cfg.permits(who, r)
}

// permits rejects a request that the token's access rules do not permit, and names the rule that it lacks.
func (c Config) permits(who domain.Identity, r *http.Request) error {
	if who.AccessRules == nil || slices.ContainsFunc(who.AccessRules, func(rule domain.AccessRule) bool {
		return rule.Permits(c.AccessRulesService, r.Method, r.URL.Path)
	}) {
		return nil
	}
	return apperr.New(apperr.Forbidden, "the access rules of the token's application credential do not permit this "+
		"request: they lack service %s, method %s, path %s", c.AccessRulesService, r.Method, r.URL.Path)
}

func tokenOf(h http.Header) (domain.Secret, error) {
	values := h.Values("X-Auth-Token")
	switch {
	case len(values) == 0 || len(values) == 1 && values[0] == "":
		return "", apperr.New(apperr.Unauthenticated, "X-Auth-Token is missing: send a Keystone token")
	case len(values) > 1:
		return "", apperr.New(apperr.Unauthenticated, "X-Auth-Token was sent %d times", len(values))
	case len(values[0]) > maxToken:
		return "", apperr.New(apperr.Unauthenticated, "X-Auth-Token is longer than %d bytes", maxToken)
	}
	for _, c := range []byte(values[0]) {
		if c <= ' ' || c >= 0x7f {
			return "", apperr.New(apperr.Unauthenticated, "X-Auth-Token is not a token")
		}
	}
	return domain.Secret(values[0]), nil
}

// Admit refuses a caller that is not served: whose token has no scope, or whose project the lists do not let in.
func (c Config) Admit(who domain.Identity) error {
	switch {
	case who.ProjectID == "" && who.DomainID == "" && !who.System:
		return apperr.New(apperr.Unauthenticated, "the token is not scoped: get one of a project from Keystone")
	case who.System:
		return nil // it belongs to no project; what it may see is decided by its roles
	case !c.Allows(who.ProjectID, who.DomainID):
		return apperr.New(apperr.Forbidden, "the token's project is not served here")
	}
	return nil
}

// identify answers from memory, or from Keystone: once for all requests with the same token at the same time.
func (a *Authenticator) identify(ctx context.Context, token domain.Secret) (domain.Identity, error) {
	key := a.keyOf(token)
	if who, ok := a.remembered(key); ok {
		return who, nil
	}
	if err, ok := a.refused.Get(key); ok {
		return domain.Identity{}, err
	}
	answer := a.flight.DoChan(string(key[:]), func() (any, error) {
		// Not the first asker's context: when that one hangs up, the others still wait.
		validating, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
		defer cancel()
		return a.validateOnce(validating, key, token)
	})
	select {
	case r := <-answer:
		if r.Err != nil {
			return domain.Identity{}, r.Err
		}
		return r.Val.(domain.Identity), nil //nolint:forcetypeassert // the function above returns nothing else
	case <-ctx.Done():
		return domain.Identity{}, apperr.Wrap(apperr.Timeout, ctx.Err(), "keystone did not answer in time")
	}
}

func (a *Authenticator) remembered(key [32]byte) (domain.Identity, bool) {
	found, ok := a.accepted.Get(key)
	return found.who, ok && time.Since(found.at) < tokenTTL && a.now().Before(found.who.ExpiresAt)
}

func (a *Authenticator) validateOnce(ctx context.Context, key [32]byte, token domain.Secret) (domain.Identity, error) {
	who, err := a.validate(ctx, token)
	who.WriteRoles = a.cfg.writeRoles(who.Roles)
	switch {
	case apperr.CodeOf(err) == apperr.Unauthenticated || apperr.CodeOf(err) == apperr.Forbidden:
		a.refused.Add(key, err)
		a.accepted.Remove(key)
	case err == nil:
		a.accepted.Add(key, accepted{who, time.Now()})
	}
	return who, err
}

type contextKey struct{}

type caller struct {
	who   domain.Identity
	token domain.Secret
}

// Caller is who makes the request, and the token to act with. It panics in a handler that was registered
// without authentication: that is a mistake of the program.
func Caller(ctx context.Context) (domain.Identity, domain.Secret) {
	c, ok := ctx.Value(contextKey{}).(caller)
	if !ok {
		panic("auth: no caller: the route is public")
	}
	return c.who, c.token
}

// CallerOrNone is who makes the request, or an empty identity when that is not known.
func CallerOrNone(ctx context.Context) domain.Identity {
	c, _ := ctx.Value(contextKey{}).(caller)
	return c.who
}

// Project is the caller, who must have a token scoped to a project.
func Project(ctx context.Context) (domain.Identity, domain.Secret, error) {
	who, token := Caller(ctx)
	if who.ProjectID == "" {
		return who, token, apperr.New(apperr.Forbidden, "this needs a token scoped to a project")
	}
	return who, token, nil
}

// CanRead fails unless the caller has a token scoped to a project.
func CanRead(ctx context.Context) error {
	_, _, err := Project(ctx)
	return err
}

// CanWrite fails unless the caller's roles in a project permit changes.
func CanWrite(ctx context.Context) error {
	who, _, err := Project(ctx)
	if err == nil && !who.MayAct() {
		err = apperr.New(apperr.Forbidden, "the token only reads: none of its roles (%s) permits changes",
			strings.Join(who.Roles, ", "))
	}
	return err
}

// accepted is what Keystone said of a token when it accepted it.
type accepted struct {
	who domain.Identity
	at  time.Time
}

// Known returns whose token a request has, if Keystone accepted it and has not refused it since: not only for
// tokenTTL. It decides nothing but which rate limit a request counts for.
func (a *Authenticator) Known(h http.Header) (domain.Identity, bool) {
	token, err := tokenOf(h)
	if err != nil {
		return domain.Identity{}, false
	}
	found, ok := a.accepted.Get(a.keyOf(token))
	if !ok || !a.now().Before(found.who.ExpiresAt) {
		return domain.Identity{}, false
	}
	return found.who, true
}

// keyOf is the token's key in the caches.
func (a *Authenticator) keyOf(token domain.Secret) [32]byte {
	mac := hmac.New(sha256.New, a.key[:])
	mac.Write([]byte(token.Reveal()))
	return [32]byte(mac.Sum(nil))
}
