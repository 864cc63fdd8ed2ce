package openstack

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
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
