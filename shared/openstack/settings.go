package openstack

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gophercloud/gophercloud/v2"
)

// How clouds.yaml and OS_* variables are read: as openstacksdk and keystoneauth read them, by one reader for the daemon
// and the CLI. gophercloud's config/clouds is not used: it reads OS_CACERT, OS_CERT and OS_KEY of the process whatever
// the cloud says, and it lacks much of what testdata/settings lists.

// settings are what a Config and Credentials mean.
type settings struct {
	source    string                  // the cloud of clouds.yaml; "" = the environment
	auth      gophercloud.AuthOptions // with what its method needs, and no more
	method    method
	assumed   bool // the user's domain is not named
	region    string
	iface     string
	cacert    string
	cert, key string
	insecure  bool
	overrides Overrides
	warnings  []string
}

// method is a way to log in.
type method string

const (
	byPassword   method = "password"
	byToken      method = "token"
	byCredential method = "application credential"
)

// methods are those that work here, by all the names that OpenStack's clients have for them.
var methods = map[string]method{
	"password": byPassword, "v3password": byPassword, "token": byToken, "v3token": byToken,
	"v3applicationcredential": byCredential,
}

// read reads clouds.yaml when a cloud is named, and the variables otherwise.
func (c Config) read(who UserConfig) (settings, error) {
	if c.Cloud == "" {
		who.Config = c
		return environment(who).settings("")
	}
	e, warnings, err := c.readCloud()
	if err != nil {
		return settings{}, fmt.Errorf("OS_CLOUD is %q: %w", c.Cloud, err)
	}
	set, err := e.settings(c.Cloud)
	if set.lacksPassword() { // the one thing that many keep out of the file
		set.auth.Password = who.Password.Reveal()
	}
	set.warnings = warnings
	return set, err
}

// settings reads an entry.
func (e entry) settings(source string) (s settings, err error) {
	file := func(key string) string { return expandUser(e.expand(e.text(key))) }
	s = settings{
		source: source, region: e.text("region_name"),
		iface:  strings.TrimSuffix(cmp.Or(e.text("endpoint_type", "interface"), "public"), "URL"),
		cacert: file("cacert"), cert: file("cert"), key: file("key"),
		insecure:  isTrue(e.text("insecure")) || isFalse(e.text("verify")),
		overrides: e.overrides(),
	}
	s.auth.IdentityEndpoint = e.expand(e.login("auth_url"))
	return s, s.readLogin(e)
}

// expand puts the values of keys in place of their names: https://keystone.{region_name}.example.com.
func (e entry) expand(text string) string {
	for key := range e {
		if name := "{" + key + "}"; strings.Contains(text, name) && e.text(key) != "" && key != "password" {
			text = strings.ReplaceAll(text, name, e.text(key))
		}
	}
	return text
}

func isTrue(text string) bool {
	return slices.Contains([]string{"true", "yes", "on"}, strings.ToLower(text))
}

func isFalse(text string) bool {
	return slices.Contains([]string{"false", "no", "off"}, strings.ToLower(text))
}

// expandUser replaces a ~ at the beginning of a path.
func expandUser(path string) string {
	if rest, found := strings.CutPrefix(path, "~"); found && (rest == "" || rest[0] == '/') {
		if home, err := os.UserHomeDir(); err == nil {
			return filepath.Join(home, rest)
		}
	}
	return path
}

// name is what an error calls a key.
func (s settings) name(key string) string {
	if s.source == "" {
		return "OS_" + strings.ToUpper(key)
	}
	return fmt.Sprintf("OS_CLOUD is %q: its %s", s.source, key)
}

// validate rejects settings by which no cloud can be reached.
func (s settings) validate() error {
	authURL := s.auth.IdentityEndpoint
	switch {
	case isURL(authURL):
	case s.source == "":
		return fmt.Errorf("OS_AUTH_URL is %q: set it to Keystone's URL, or OS_CLOUD to a name in clouds.yaml", authURL)
	case authURL == "":
		return errors.Join(fmt.Errorf("OS_CLOUD is %q: that cloud has no auth_url", s.source), s.warned())
	default:
		return fmt.Errorf("%s is %q; it must be Keystone's URL, such as https://keystone.example.com/v3",
			s.name("auth_url"), authURL)
	}
	switch s.iface {
	case "public", "internal", "admin":
		return s.overrides.validate(s.name)
	}
	return fmt.Errorf("%s is %q: it must be public, internal or admin", s.name("interface"), s.iface)
}

// warned is what may have been missed: the profile of a vendor has an auth_url.
func (s settings) warned() error {
	if len(s.warnings) == 0 {
		return nil
	}
	return errors.New(strings.Join(s.warnings, ", "))
}

func isURL(text string) bool {
	u, err := url.Parse(text)
	return err == nil && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https")
}

// tls loads the certificates. roots are those of the cloud's own authority, in PEM; nil when none is named.
func (s settings) tls() (config *tls.Config, roots []byte, err error) {
	if s.cacert == "" && s.cert == "" && !s.insecure {
		return nil, nil, nil
	}
	config = &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: s.insecure} //nolint:gosec // as it is set
	if s.cacert != "" {
		if roots, err = readCertificates(s.cacert); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", s.name("cacert"), err)
		}
		config.RootCAs = x509.NewCertPool()
		config.RootCAs.AppendCertsFromPEM(roots)
	}
	if s.cert != "" {
		pair, err := tls.LoadX509KeyPair(s.cert, cmp.Or(s.key, s.cert))
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", s.name("cert"), err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, roots, nil
}

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

// isComplete reports whether a token can be requested from Keystone.
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
