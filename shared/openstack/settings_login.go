package openstack

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gophercloud/gophercloud/v2"
)

// defaultDomain is the id that Keystone gives its first domain; every client takes it when none is named.
const defaultDomain = "default"

// domainRef names a domain; the id goes before the name.
type domainRef struct{ id, name string }

func (d domainRef) or(other domainRef) domainRef {
	switch {
	case d.id != "":
		return domainRef{id: d.id}
	case d.name != "":
		return domainRef{name: d.name}
	}
	return other
}

// readLogin reads who logs in to what, and how.
func (s *settings) readLogin(e entry) error {
	if err := s.chooseMethod(e); err != nil {
		return err
	}
	scope, user := e.scope()
	if user == (domainRef{}) {
		user, s.assumed = domainRef{id: defaultDomain}, true
	}
	a := &s.auth
	switch s.method {
	case byPassword:
		a.Password, a.Scope = e.login("password"), scope
		s.setUser(e, user)
	case byToken:
		a.TokenID, a.Scope = e.login("token", "auth_token"), scope
	case byCredential: // it has its own scope, and Keystone takes none beside it
		a.ApplicationCredentialSecret = e.login("application_credential_secret")
		if a.ApplicationCredentialID = e.login("application_credential_id"); a.ApplicationCredentialID == "" {
			a.ApplicationCredentialName = e.login("application_credential_name")
			s.setUser(e, user)
		}
	}
	if system := e.login("system_scope"); system != "" && system != "all" {
		return fmt.Errorf("%s is %q: it must be all", s.name("system_scope"), system)
	}
	return nil
}

func (s *settings) setUser(e entry, in domainRef) {
	if s.auth.UserID = e.login("user_id"); s.auth.UserID == "" {
		if s.auth.Username = e.login("username", "user_name"); s.auth.Username != "" {
			s.auth.DomainID, s.auth.DomainName = in.id, in.name
		}
	}
}

// chooseMethod takes the method that is named. Without a name it takes a complete application credential, a password or
// a token, in this order: who makes a credential leaves the password where it was.
func (s *settings) chooseMethod(e entry) error {
	kind := e.text("auth_type", "auth_plugin")
	isUser := e.login("user_id", "username", "user_name") != ""
	switch named, known := methods[kind]; {
	case known:
		s.method = named
	case kind != "":
		what := s.name("auth_type")
		if s.source != "" {
			what = "auth_type of the cloud " + s.source
		}
		return fmt.Errorf("%s is %q: it must be one of %s", what, kind,
			strings.Join(slices.Sorted(maps.Keys(methods)), ", "))
	case e.login("application_credential_secret") != "" &&
		e.login("application_credential_id", "application_credential_name") != "":
		s.method = byCredential
	case e.login("token", "auth_token") != "" && (e.login("password") == "" || !isUser):
		s.method = byToken
	default:
		s.method = byPassword
	}
	return nil
}

// scope returns what to log in to, nil = nothing, and the domain of the user.
//
// Where one domain is not named, keystoneauth has Keystone reject the login, and openstackclient takes the default
// domain when the API version is 3. Here it is the other domain that is named, unless the version is 3.
func (e entry) scope() (*gophercloud.AuthScope, domainRef) {
	common := domainRef{e.login("domain_id"), e.login("domain_name")}
	fallback := domainRef{e.login("default_domain_id"), e.login("default_domain_name")}.
		or(domainRef{id: e.login("default_domain")})
	user := domainRef{e.login("user_domain_id"), e.login("user_domain_name")}
	id, name := e.login("project_id", "tenant_id"), e.login("project_name", "tenant_name")
	isProject := id != "" || name != ""
	isStrict := strings.HasPrefix(e.text("identity_api_version"), "3")
	if isProject || !isStrict {
		user = domainRef{cmp.Or(user.id, common.id), cmp.Or(user.name, common.name)}
	}
	user = user.or(fallback)
	switch {
	case e.login("trust_id") != "":
		return &gophercloud.AuthScope{TrustID: e.login("trust_id")}, user
	case e.login("system_scope") != "":
		return &gophercloud.AuthScope{System: true}, user
	case id != "":
		return &gophercloud.AuthScope{ProjectID: id}, user
	case isProject:
		in := domainRef{
			cmp.Or(e.login("project_domain_id"), common.id), cmp.Or(e.login("project_domain_name"), common.name),
		}
		if in = in.or(fallback); !isStrict {
			in = in.or(user)
		}
		in = in.or(domainRef{id: defaultDomain})
		return &gophercloud.AuthScope{ProjectName: name, DomainID: in.id, DomainName: in.name}, user
	case common != (domainRef{}):
		common = common.or(domainRef{})
		return &gophercloud.AuthScope{DomainID: common.id, DomainName: common.name}, user
	}
	return nil, user
}

// lacksPassword reports whether nothing but the password is missing.
func (s settings) lacksPassword() bool {
	return s.method == byPassword && s.auth.Password == "" && (s.auth.Username != "" || s.auth.UserID != "")
}

// isComplete reports whether Keystone can be asked for a token.
func (s settings) isComplete() bool {
	a := s.auth
	isUser := a.UserID != "" || a.Username != ""
	switch s.method {
	case byToken:
		return a.TokenID != ""
	case byCredential:
		return a.ApplicationCredentialSecret != "" &&
			(a.ApplicationCredentialID != "" || a.ApplicationCredentialName != "" && isUser)
	}
	return a.Password != "" && isUser
}
