// Package openstack owns every call to OpenStack: gophercloud everywhere, with thin structs of our own
// where its pager decodes a page four times (servers, usage) or asks for more than is needed (tokens).
//
// Calls run either with the caller's own token (Cloud.As), so that OpenStack's policy decides, or with the
// service account that only event functions have (Cloud.Service).
package openstack

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/config/clouds"
	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/singleflight"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// The microversions of compute that calls ask for: always the lowest that carries what is needed, because a
// higher one makes Nova read more. Zed, the oldest release that we test with, ends at 2.93.
const (
	computeBase         = "2.1"
	computeTags         = "2.26" // a server shows its tags, a deleted one too
	computeUsagePaging  = "2.40" // os-simple-tenant-usage in pages; cut off in silence before
	computeFlavorInside = "2.47" // a server shows its flavor's name and size; only an id before
	computeActionList   = "2.21" // the instance actions of a deleted server, too
	computeActionEvents = "2.51" // the events of an action for everybody; for admins only before
	computeActionTimes  = "2.58" // instance actions with updated_at, when they finished, and in pages
	computeCreateTags   = "2.52" // tags in the create call, so that a server never exists without its UUID
	computeRebuildData  = "2.57" // user_data in a rebuild
	computeDownCells    = "2.69" // a server of a cell that is down is shown in part; an error before
	computeAggregateIDs = "2.41" // an aggregate shows its uuid, which is its name in Placement
	computeServiceIDs   = "2.53" // a compute service shows the id by which it is changed
	computeMigrations   = "2.23" // a migration shows its type
	computeLiveMigrate  = "2.34" // Nova checks a live migration after its answer; the call waited for that before
	computeActionFault  = "2.84" // an event of an action says in words why it failed
	computeImageID      = "2.45" // a snapshot's id in the answer; in the path of an address before
	computeSoftGroups   = "2.15" // server groups with soft policies
	// computeHypervisors is where a hypervisor's id is that of its resource provider, and its servers are shown. From
	// 2.88 on cpu_info is not.
	computeHypervisors   = "2.53"
	computeRequestedHost = "2.74" // a host in the create call that the scheduler checks; it was forced before

	computeRebuildVolume = "2.93" // a rebuild of a server that boots from a volume
)

// Config says where Keystone is and how to choose from its catalog. It holds no credentials.
type Config struct {
	// Cloud name in clouds.yaml; the other `OS_*` variables are then ignored.
	Cloud string `env:"OS_CLOUD"`
	// Path of clouds.yaml, if it is not in a standard place.
	ConfigFile string `env:"OS_CLIENT_CONFIG_FILE"`
	// Keystone, such as `https://keystone.example.com/v3`.
	AuthURL string `env:"OS_AUTH_URL"`
	// Region; required when the catalog has several.
	Region string `env:"OS_REGION_NAME"`
	// Endpoint interface of this cloud: public, internal or admin.
	Interface string `env:"OS_INTERFACE, default=public"`
	// File with the certificate authority of the cloud.
	CACert string `env:"OS_CACERT"`
	Overrides
}

// Validate refuses a Config that cannot work.
func (c Config) Validate() error {
	if c.Cloud != "" {
		return nil
	}
	if !isURL(c.AuthURL) {
		return fmt.Errorf("OS_AUTH_URL is %q: set it to Keystone's URL, or OS_CLOUD to a name in clouds.yaml",
			c.AuthURL)
	}
	switch c.Interface {
	case "public", "internal", "admin":
		return c.validate(overrideVariable)
	}
	return fmt.Errorf("OS_INTERFACE is %q: it must be public, internal or admin", c.Interface)
}

func isURL(text string) bool {
	u, err := url.Parse(text)
	return err == nil && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https")
}

// Cloud is one OpenStack. It makes no call before it is used.
type Cloud struct {
	identity   string // Keystone's v3 URL, with a / at its end
	region     string
	iface      string
	http       http.Client
	catalogs   *catalogCache
	others     *lru.Cache[string, *Cloud] // clouds and regions reached by At
	catalogSF  singleflight.Group
	probes     singleflight.Group
	remotes    *remotes
	overrides  Overrides
	versions   *lru.Cache[string, discovered] // by endpoint
	versionsSF singleflight.Group
	confirmed  atomic.Int64 // when Keystone's own answer was last seen, in Unix nanoseconds
}

// catalogTTL is how long a project's catalog is believed.
const catalogTTL = 5 * time.Minute

// Options are what the caller adds to a Cloud.
type Options struct {
	RequestID func(context.Context) string              // for X-Openstack-Request-Id; "" = none
	Wrap      func(http.RoundTripper) http.RoundTripper // tracing; nil = none
}

// New prepares a Cloud from its Config.
func New(cfg Config, opts Options) (*Cloud, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	tlsConfig, err := cfg.resolve()
	if err != nil {
		return nil, err
	}
	roots, err := cfg.roots()
	if err != nil {
		return nil, err
	}
	c := &Cloud{
		identity: identityURL(cfg.AuthURL), region: cfg.Region, iface: cfg.Interface,
		http:     *newHTTPClient(tlsConfig, opts),
		catalogs: newCatalogCache(), others: newCache[*Cloud](maxClouds), overrides: cfg.Overrides,
		versions: newVersionCache(),
		remotes:  &remotes{options: opts, roots: roots, known: map[string]remote{}, http: map[string]*http.Client{}},
	}
	return c, nil
}

func newHTTPClient(tlsConfig *tls.Config, opts Options) *http.Client {
	return &http.Client{
		Transport: newTransport(tlsConfig, opts),
		// A redirect would carry X-Auth-Token to whatever host it names.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Close gives back the connections that are idle.
func (c *Cloud) Close() {
	c.http.CloseIdleConnections()
	c.remotes.close()
}

// IdentityURL is Keystone's URL as it stands in WWW-Authenticate.
func (c *Cloud) IdentityURL() string { return strings.TrimSuffix(c.identity, "/") }

// resolve fills the Config from clouds.yaml when a cloud is named, and loads the certificate authority.
func (c *Config) resolve() (*tls.Config, error) {
	if c.Cloud == "" {
		return loadCA(c.CACert)
	}
	auth, endpoint, tlsConfig, err := c.parse()
	if err != nil {
		return nil, fmt.Errorf("OS_CLOUD is %q: %w", c.Cloud, err)
	}
	c.AuthURL, c.Interface = auth.IdentityEndpoint, string(endpoint.Availability)
	if endpoint.Region != "" {
		c.Region = endpoint.Region
	}
	if c.Interface == "" {
		c.Interface = "public"
	}
	if c.AuthURL == "" {
		return nil, fmt.Errorf("OS_CLOUD is %q: that cloud has no auth_url", c.Cloud)
	}
	if !isURL(c.AuthURL) {
		return nil,
			fmt.Errorf(
				"OS_CLOUD is %q: its auth_url is %q; it must be Keystone's URL, such as "+
					"https://keystone.example.com/v3", c.Cloud, c.AuthURL,
			)
	}
	c.Overrides, err = c.readOverrides()
	return tlsConfig, err
}

// parse reads the cloud that is named from clouds.yaml.
func (c *Config) parse() (
	auth gophercloud.AuthOptions, endpoint gophercloud.EndpointOpts, tlsConfig *tls.Config, err error,
) {
	defer func() {
		if recover() != nil { // gophercloud takes it for granted
			err = errors.New("that cloud has no auth")
		}
	}()
	return clouds.Parse(c.parseOptions()...)
}

func (c *Config) parseOptions() []clouds.ParseOption {
	opts := []clouds.ParseOption{clouds.WithCloudName(c.Cloud)}
	if c.ConfigFile != "" {
		opts = append(opts, clouds.WithLocations(c.ConfigFile))
	}
	return opts
}

// roots are the certificates of the cloud's own authority; nil when none is named.
func (c *Config) roots() ([]byte, error) {
	file := c.CACert
	if known, _, err := readClouds(c.ConfigFile); c.Cloud != "" && err == nil && file == "" {
		file = known.Clouds[c.Cloud].CACertFile
	}
	if file == "" {
		return nil, nil
	}
	return readCertificates(file)
}

func loadCA(file string) (*tls.Config, error) {
	if file == "" {
		return nil, nil //nolint:nilnil // no file, no special configuration
	}
	pem, err := readCertificates(file)
	if err != nil {
		return nil, fmt.Errorf("OS_CACERT: %w", err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, nil
}

func identityURL(authURL string) string {
	base := strings.TrimSuffix(authURL, "/")
	if !strings.HasSuffix(base, "/v3") {
		base += "/v3"
	}
	return base + "/"
}

// Session is a set of calls made with one token.
type Session struct {
	cloud *Cloud
	token domain.Secret
	scope string // what the token is scoped to: the key of its catalog

	region string // that the caller has chosen; "" = the cloud's

	// Of a session that was opened by a login, and not with a caller's token:
	project string // that it is in
	userID  string
	catalog catalog // which a credential with access rules may not be allowed to ask for
	actsAs  domain.ActsAs

	olderNova atomic.Bool // it has no computeActionTimes
}

// As makes calls with the caller's own token. scope is the id that the token is scoped to; two tokens of
// the same scope share a catalog.
func (c *Cloud) As(token domain.Secret, scope string) *Session {
	return &Session{cloud: c, token: token, scope: scope}
}

// provider is gophercloud's view of the session. It never re-authenticates: the token is the caller's.
func (s *Session) provider() *gophercloud.ProviderClient {
	p := &gophercloud.ProviderClient{HTTPClient: s.cloud.http, TokenID: s.token.Reveal()}
	p.UserAgent.Prepend("cloudfn")
	return p
}

// client is a client for a service of the catalog. base is the version in its paths ("v2.0/"): it is appended to the
// endpoint, or replaces another version there.
func (s *Session) client(ctx context.Context, service, base, microversion string) (*gophercloud.ServiceClient, error) {
	endpoint, err := s.endpoint(ctx, service)
	if err != nil {
		return nil, err
	}
	provider := s.provider()
	provider.HTTPClient.Transport = blame{s, projectName(service), provider.HTTPClient.Transport}
	sc := &gophercloud.ServiceClient{
		ProviderClient: provider, Endpoint: endpoint, Type: service, Microversion: microversion,
	}
	if base != "" {
		_, version := splitVersion(endpoint)
		sc.ResourceBase = strings.TrimSuffix(strings.TrimSuffix(endpoint, "/"), "/"+version) + "/" + base
	}
	return sc, nil
}

func (s *Session) compute(ctx context.Context, microversion string) (*gophercloud.ServiceClient, error) {
	return s.client(ctx, "compute", "", microversion)
}
