package openstack

import (
	"context"
	"errors"
	"net/url"
	"sync"

	"github.com/gophercloud/gophercloud/v2"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// How names become ids. Keystone's policy lets a plain member see the domain of his project and the projects in which he has a role, and no
// other user. Users and projects are listed to admins, to readers of the whole system, and to readers of a domain with a token of that one.

// UserNamed is the id of the user of that name in a domain. NotFound when there is none, Forbidden when the session may not know.
func (s *Session) UserNamed(ctx context.Context, domainID, name string) (id string, err error) {
	var body struct {
		Users []project `json:"users"`
	}
	keystone := s.keystone()
	query := url.Values{"domain_id": {domainID}, "name": {name}}
	if err := getPage(ctx, keystone, keystone.ServiceURL("users")+"?"+query.Encode(), &body); err != nil {
		return "", classify("keystone", err)
	}
	return onlyNamed("user", body.Users, domainID, name)
}

// ProjectNamed is the id of the project of that name in a domain: one of the session's user, or any that it may know of. NotFound when
// there is none, Forbidden when the session may not know.
func (s *Session) ProjectNamed(ctx context.Context, domainID, name string) (id string, err error) {
	if own, _, err := s.listProjects(ctx, "auth/projects", nil); err == nil {
		if id, err := onlyNamed("project", own, domainID, name); err == nil {
			return id, nil
		}
	}
	found, _, err := s.listProjects(ctx, "projects", url.Values{"domain_id": {domainID}, "name": {name}})
	if err != nil {
		return "", err
	}
	return onlyNamed("project", found, domainID, name)
}

// DomainNamed is the id of a domain, given by its name or its id. own is the id of the one that the session's token is of, which it may see
// in any case. NotFound when there is none, Forbidden when the session may not know.
func (s *Session) DomainNamed(ctx context.Context, own, nameOrID string) (id string, err error) {
	if nameOrID == own {
		return own, nil
	}
	keystone := s.keystone()
	if own != "" {
		var body struct {
			Domain project `json:"domain"`
		}
		_, err := keystone.Get(ctx, keystone.ServiceURL("domains", url.PathEscape(own)), &body, nil)
		switch err = classify("keystone", err); apperr.CodeOf(err) {
		case "":
			if body.Domain.Name == nameOrID {
				return own, nil
			}
		case apperr.Forbidden, apperr.NotFound:
		default:
			return "", err
		}
	}
	found, _, err := s.listProjects(ctx, "domains", nil)
	if err != nil {
		return "", err
	}
	for _, d := range found {
		if d.ID == nameOrID || d.Name == nameOrID {
			return d.ID, nil
		}
	}
	return "", apperr.New(apperr.NotFound, "there is no domain %q", nameOrID)
}

// onlyNamed finds a name among what Keystone lists, whose databases may take names that differ in case for equal.
func onlyNamed(what string, found []project, domainID, name string) (id string, err error) {
	for _, p := range found {
		if p.Name == name && p.DomainID == domainID && !p.IsDomain {
			return p.ID, nil
		}
	}
	return "", apperr.New(apperr.NotFound, "there is no %s %q", what, name)
}

// LookupConfig is the account that looks names up for users who may not. It needs the role reader on a domain, or on the system, and no
// other. Without a name there is none.
type LookupConfig struct {
	Username   string        `env:"LOOKUP_OS_USERNAME"`
	Password   domain.Secret `env:"LOOKUP_OS_PASSWORD"`
	UserDomain string        `env:"LOOKUP_OS_USER_DOMAIN_NAME"`
	// Domain is the one on which the account is a reader: names in others are not looked up. SystemScope "all" is all of them.
	Domain      string `env:"LOOKUP_OS_DOMAIN_NAME"`
	SystemScope string `env:"LOOKUP_OS_SYSTEM_SCOPE"`
}

// Validate refuses a LookupConfig that cannot work.
func (c LookupConfig) Validate() error {
	switch {
	case c.Username == "" && (c.Password != "" || c.Domain != "" || c.SystemScope != "" || c.UserDomain != ""):
		return errors.New("LOOKUP_OS_USERNAME is empty: it must be the name of the user who looks names up, as LOOKUP_OS_* is set besides")
	case c.Username == "":
		return nil
	case c.Password == "":
		return errors.New("LOOKUP_OS_PASSWORD is empty: it must be the password of LOOKUP_OS_USERNAME")
	case (c.Domain == "") == (c.SystemScope == ""):
		return errors.New("LOOKUP_OS_DOMAIN_NAME or LOOKUP_OS_SYSTEM_SCOPE must be set, and not both: on what LOOKUP_OS_USERNAME is a reader")
	case c.SystemScope != "" && c.SystemScope != "all":
		return errors.New("LOOKUP_OS_SYSTEM_SCOPE must be all, or empty with LOOKUP_OS_DOMAIN_NAME set")
	}
	return nil
}

// Lookup is a session of the account that looks names up, opened when it is needed first.
type Lookup struct {
	cloud *Cloud
	auth  gophercloud.AuthOptions

	mu       sync.Mutex
	session  *Session
	domainID string // that the session is of
}

// Lookup prepares the account; nil when there is none.
func (c *Cloud) Lookup(cfg LookupConfig) *Lookup {
	if cfg.Username == "" {
		return nil
	}
	l := &Lookup{cloud: c, auth: gophercloud.AuthOptions{Username: cfg.Username, Password: cfg.Password.Reveal(), DomainName: cfg.UserDomain}}
	if cfg.UserDomain == "" {
		l.auth.DomainID = defaultDomain
	}
	l.auth.Scope = &gophercloud.AuthScope{DomainName: cfg.Domain}
	if cfg.SystemScope != "" {
		l.auth.Scope = &gophercloud.AuthScope{System: true}
	}
	return l
}

// Do calls do with the account's session, and with a new one when Keystone does not accept that any more. domainID is the domain of the
// session; "" when it is of the whole system.
func (l *Lookup) Do(ctx context.Context, do func(s *Session, domainID string) error) error {
	s, domainID, err := l.open(ctx, nil)
	if err != nil {
		return err
	}
	if err = do(s, domainID); apperr.CodeOf(err) != apperr.Unauthenticated {
		return err
	}
	if s, domainID, err = l.open(ctx, s); err != nil {
		return err
	}
	return do(s, domainID)
}

// open is the account's session, another one than stale.
func (l *Lookup) open(ctx context.Context, stale *Session) (*Session, string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.session != nil && l.session != stale {
		return l.session, l.domainID, nil
	}
	s, t, err := l.cloud.loginAs(ctx, &l.auth)
	if err != nil {
		return nil, "", apperr.Wrap(apperr.Unavailable, err, "names cannot be looked up now: the account of LOOKUP_OS_USERNAME cannot log in")
	}
	l.session, l.domainID = s, t.identity().DomainID
	return s, l.domainID, nil
}
