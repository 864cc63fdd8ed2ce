package openstack

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
)

// RemotesConfig lists the other clouds that connections may be to. OS_INTERFACE and the endpoint overrides are this
// cloud's own; of another cloud the public interface is taken, and certificates that the system's authorities or
// OS_CACERT's have signed. Each entry may say otherwise:
// https://keystone.example.com/v3;interface=internal;cacert=/etc/cloudfn/north.pem;region=RegionTwo.
type RemotesConfig struct {
	// Keystone URLs of other clouds that connections may use, separated by commas; when empty, none. Each may have
	// settings: `https://keystone.example.com/v3;interface=internal;cacert=/etc/cloudfn/north.pem;region=RegionTwo`.
	// By default the public interface is used, and the authorities of the system and of `OS_CACERT` are trusted.
	Clouds []string `env:"CONNECTION_CLOUDS"`
}

// remote is the configuration of another cloud.
type remote struct {
	identity string // Keystone's v3 URL, with a / at its end
	iface    string
	region   string // default for connections
	roots    []byte // certificates of authorities, in PEM; nil = the system's and this cloud's
}

// Validate fails on a RemotesConfig that cannot work.
func (c RemotesConfig) Validate() error {
	_, err := c.parse()
	return err
}

// URLs are the Keystone URLs without the settings.
func (c RemotesConfig) URLs() []string {
	urls := make([]string, len(c.Clouds))
	for n, entry := range c.Clouds {
		urls[n], _, _ = strings.Cut(entry, ";")
	}
	return urls
}

func (c RemotesConfig) parse() ([]remote, error) {
	var list []remote
	for n, entry := range c.Clouds {
		one, err := parseRemote(entry)
		for m, other := range list {
			if err == nil && other.identity == one.identity {
				err = fmt.Errorf(" is the cloud of entry %d", m+1)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("CONNECTION_CLOUDS must be a list of Keystone URLs without credentials, such as "+
				"https://keystone.example.com/v3 or "+
				"https://keystone.example.com/v3;interface=internal;cacert=FILE;region=NAME: its entry %d%w", n+1, err)
		}
		list = append(list, one)
	}
	return list, nil
}

// parseRemote reads one entry. Its errors do not quote the URL, which may hold a password; they follow the entry's
// number.
func parseRemote(entry string) (r remote, err error) {
	address, settings, _ := strings.Cut(entry, ";")
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.RawQuery != "" ||
		u.Fragment != "" {
		return r, errors.New(" is not a Keystone URL without credentials")
	}
	r = remote{identity: identityURL(address), iface: "public"}
	seen := map[string]bool{}
	for setting := range strings.SplitSeq(settings, ";") {
		if settings == "" {
			break
		}
		name, value, assigned := strings.Cut(setting, "=")
		switch {
		case !assigned || name != "interface" && name != "cacert" && name != "region":
			return r, fmt.Errorf(": unknown setting %q; expected interface, cacert or region, each with = and a value",
				name)
		case value == "":
			return r, fmt.Errorf(": %s is empty", name)
		case seen[name]:
			return r, fmt.Errorf(": %s is set twice", name)
		}
		seen[name] = true
		if err := r.set(name, value); err != nil {
			return r, err
		}
	}
	return r, nil
}

func (r *remote) set(name, value string) (err error) {
	switch name {
	case "region":
		r.region = value
	case "interface":
		if r.iface = value; value != "public" && value != "internal" && value != "admin" {
			return fmt.Errorf(": interface is %q; it must be public, internal or admin", value)
		}
	case "cacert":
		if r.roots, err = readCertificates(value); err != nil {
			return fmt.Errorf(": cacert: %w", err)
		}
	}
	return nil
}

// readCertificates reads a file in PEM, and makes sure that there is a certificate in it.
func readCertificates(file string) ([]byte, error) {
	text, err := os.ReadFile(expandUser(file))
	if err != nil {
		return nil, err
	}
	if !x509.NewCertPool().AppendCertsFromPEM(text) {
		return nil, errors.New(file + " holds no certificate")
	}
	return text, nil
}

// remotes are the other clouds that a Cloud knows how to reach.
type remotes struct {
	options Options
	roots   []byte // what is trusted besides the system's authorities: OS_CACERT, or cacert of clouds.yaml

	mu    sync.Mutex
	known map[string]remote       // by identity
	http  map[string]*http.Client // by the certificates that it trusts
}

// AddRemotes configures other clouds. Call it before At.
func (c *Cloud) AddRemotes(cfg RemotesConfig) error {
	list, err := cfg.parse()
	if err != nil {
		return err
	}
	c.remotes.mu.Lock()
	defer c.remotes.mu.Unlock()
	for _, one := range list {
		c.remotes.known[one.identity] = one
	}
	return nil
}

// find returns the configuration and the client of the cloud with this Keystone.
func (r *remotes) find(identity string) (remote, http.Client) {
	r.mu.Lock()
	defer r.mu.Unlock()
	found, ok := r.known[identity]
	if !ok {
		found = remote{identity: identity, iface: "public"}
	}
	key := string(found.roots)
	if r.http[key] == nil {
		r.http[key] = newHTTPClient(r.tlsConfig(found.roots), r.options)
	}
	return found, *r.http[key]
}

// tlsConfig trusts own, or else the system's authorities and this cloud's.
func (r *remotes) tlsConfig(own []byte) *tls.Config {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	switch {
	case own != nil:
		config.RootCAs = x509.NewCertPool()
		config.RootCAs.AppendCertsFromPEM(own)
	case r.roots != nil:
		config.RootCAs, _ = withSystem(r.roots)
	}
	return config
}

// withSystem adds authorities to the system's, if those can be read.
func withSystem(more []byte) (*x509.CertPool, error) {
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	pool.AppendCertsFromPEM(more)
	return pool, err
}

// close closes idle connections.
func (r *remotes) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, client := range r.http {
		client.CloseIdleConnections()
	}
}
