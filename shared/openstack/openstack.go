// Package openstack owns every call to OpenStack: gophercloud everywhere, with thin structs of our own
// where its pager decodes a page four times (servers, usage) or requests more than is needed (tokens).
//
// Calls run either with the caller's own token (Cloud.As), so that OpenStack's policy decides, or with the
// service account that only event functions have (Cloud.Account).
package openstack

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/singleflight"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// The microversions of compute that calls request: always the lowest that carries what is needed, because a
// higher one makes Nova read more. Zed, the oldest release that we test with, ends at 2.93.
const (
	computeBase          = "2.1"
	computeDescription   = "2.19" // the description of a server can be changed
	computeDetachShelved = "2.20" // a volume can be detached from a shelved server
	computeTags          = "2.26" // a server shows its tags, a deleted one too
	computeUsagePaging   = "2.40" // os-simple-tenant-usage in pages; cut off in silence before
	computeFlavorInside  = "2.47" // a server shows its flavor's name and size; only an id before
	computeActionList    = "2.21" // the instance actions of a deleted server, too
	computeActionEvents  = "2.51" // the events of an action for all users; for admins only before
	computeActionTimes   = "2.58" // instance actions with updated_at, when they finished, and in pages
	computeFlavorSpecs   = "2.61" // a list of flavors shows their extra specs
	computeCreateTags    = "2.52" // tags in the create call, so that a server never exists without its UUID
	computeRebuildData   = "2.57" // user_data in a rebuild
	computeMultiattach   = "2.60" // volumes that several servers may have; rejected before
	computeVolumeTypes   = "2.67" // the type of a new volume in the create call
	computeDownCells     = "2.69" // servers and hosts of a cell that is down are shown in part
	computeLockReason    = "2.73" // why a server is locked
	computeServerGroups  = "2.71" // a server shows its server groups; Nova of 2.69's release has it, too
	computeAggregateIDs  = "2.41" // an aggregate shows its uuid, which is its name in Placement
	computeServiceIDs    = "2.53" // a compute service shows the id by which it is changed
	computeMigrations    = "2.23" // a migration shows its type
	computeLiveMigrate   = "2.34" // Nova checks a live migration after its answer; the call waited for that before
	computeAttachDelete  = "2.79" // an attachment shows if its volume is deleted with the server, from its call on
	computeKeepVolumes   = "2.85" // an attachment can be changed, and shows its tag and what becomes of the volume
	computeActionFault   = "2.84" // an event of an action says in words why it failed
	computeImageID       = "2.45" // a snapshot's id in the answer; in the path of an address before
	computeSoftGroups    = "2.15" // server groups with soft policies
	computeConsoles      = "2.6"  // remote consoles of all types by one call
	computeConsolesMKS   = "2.8"  // those of the type webmks
	// computeHypervisors is where a hypervisor's id is that of its resource provider, and its servers are shown. From
	// 2.88 on cpu_info is not.
	computeHypervisors   = "2.53"
	computeRequestedHost = "2.74" // a host in the create call that the scheduler checks; it was forced before

	computeRescueVolume  = "2.87" // a rescue of a server that boots from a volume
	computeRebuildVolume = "2.93" // a rebuild of a server that boots from a volume
)

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
	warnings   []string
	confirmed  atomic.Int64 // when Keystone's own answer last came, in Unix nanoseconds
}

// catalogTTL is how long a project's catalog is believed.
const catalogTTL = 5 * time.Minute

// Options are what the caller adds to a Cloud.
type Options struct {
	RequestID func(context.Context) string              // for X-Openstack-Request-Id; "" = none
	Wrap      func(http.RoundTripper) http.RoundTripper // tracing; nil = none
	InFlight  int                                       // calls to one service at a time; 0 = no limit
}

// New prepares a Cloud from its Config.
func New(cfg Config, opts Options) (*Cloud, error) {
	set, err := cfg.read(UserConfig{})
	if err != nil {
		return nil, err
	}
	if err := set.validate(); err != nil {
		return nil, err
	}
	tlsConfig, roots, err := set.tls()
	if err != nil {
		return nil, err
	}
	c := &Cloud{
		identity: identityURL(set.auth.IdentityEndpoint), region: set.region, iface: set.iface,
		http:     *newHTTPClient(tlsConfig, opts),
		catalogs: newCatalogCache(), others: newCache[*Cloud](maxClouds), overrides: set.overrides,
		versions: newVersionCache(), warnings: set.warnings,
		remotes: &remotes{options: opts, roots: roots, known: map[string]remote{}, http: map[string]*http.Client{}},
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

// Warnings are what clouds.yaml says and cannot be followed.
func (c *Cloud) Warnings() []string { return c.warnings }

// IdentityURL is Keystone's URL as it stands in WWW-Authenticate.
func (c *Cloud) IdentityURL() string { return strings.TrimSuffix(c.identity, "/") }

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
	catalog catalog // which a credential with access rules may not be allowed to read
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
	provider.HTTPClient.Transport = blame{s, service, projectName(service), provider.HTTPClient.Transport}
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

// maxClouds bounds the other clouds and regions that are kept. Anyone who makes a connection names the region.
const maxClouds = 100

// At is another cloud, reached as AddRemotes has said, or another region of this one. authURL "" is this cloud's
// Keystone. The same cloud and region is the same Cloud, so that its catalogs are kept.
func (c *Cloud) At(authURL, region string) *Cloud {
	other := &Cloud{
		identity: c.identity, region: c.region, iface: c.iface, http: c.http, remotes: c.remotes,
		versions: c.versions,
	}
	switch identity := identityURL(authURL); {
	case authURL == "":
	case identity == c.identity:
		other.region = ""
	default: // with its own interface and authorities, and not this cloud's
		found, client := c.remotes.find(identity)
		other.identity, other.region, other.iface, other.http = identity, found.region, found.iface, client
	}
	if region != "" {
		other.region = region
	}
	if other.identity == c.identity && other.region == c.region {
		other.overrides = c.overrides
	}
	return c.kept(other)
}

// kept is the Cloud that is kept of the other's Keystone and region, or else the other itself, which is kept from now
// on.
func (c *Cloud) kept(other *Cloud) *Cloud {
	key := other.identity + " " + other.region
	if known, ok := c.others.Get(key); ok {
		return known
	}
	other.catalogs, other.others = newCatalogCache(), c.others
	if known, ok, _ := c.others.PeekOrAdd(key, other); ok { // another caller was faster
		return known
	}
	return other
}

// Region is the region that the cloud's services are looked for in; "" when its catalog has one only.
func (c *Cloud) Region() string { return c.region }

// get reads an answer of a service into a struct.
func get(ctx context.Context, client *gophercloud.ServiceClient, address string, into any) error {
	_, err := client.Get(ctx, address, into, &gophercloud.RequestOpts{})
	return classify(projectName(client.Type), err)
}

// getNova reads an answer of Nova. The elements of path need not be escaped.
func (s *Session) getNova(ctx context.Context, microversion string, into any, path ...string) error {
	nova, err := s.compute(ctx, microversion)
	if err != nil {
		return err
	}
	for n := range path {
		path[n] = url.PathEscape(path[n])
	}
	return get(ctx, nova, nova.ServiceURL(path...), into)
}

// shared makes one call for all concurrent callers with the same key. The first caller's context does not end it: when
// that one hangs up, the others still wait.
func shared[T any](
	ctx context.Context, group *singleflight.Group, key, service string, timeout time.Duration,
	call func(context.Context) (T, error),
) (value T, err error) {
	answer := group.DoChan(key, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
		defer cancel()
		return call(ctx)
	})
	select {
	case r := <-answer:
		value, _ = r.Val.(T)
		return value, r.Err
	case <-ctx.Done():
		return value, classify(service, ctx.Err())
	}
}

// pages are the buffers of long answers, used again by the next one.
var pages = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// keptPage is the largest buffer that is kept: a page of 1000 servers has 2 MB.
const keptPage = 4 << 20

// getPage reads a long answer in one piece and decodes it. gophercloud's json.Decoder grows a new buffer for each
// answer by doubling: for a page of 2 MB that is more memory than all that is decoded from it.
func getPage(ctx context.Context, client *gophercloud.ServiceClient, url string, into any) error {
	resp, err := client.Get(ctx, url, nil, &gophercloud.RequestOpts{KeepResponseBody: true})
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	buffer := pages.Get().(*bytes.Buffer) //nolint:forcetypeassert // the pool holds nothing else
	defer func() {
		if buffer.Cap() <= keptPage {
			pages.Put(buffer)
		}
	}()
	buffer.Reset()
	if 0 < resp.ContentLength && resp.ContentLength <= keptPage { // a longer one has to prove itself as it comes
		buffer.Grow(int(resp.ContentLength) + bytes.MinRead)
	}
	if _, err := buffer.ReadFrom(resp.Body); err != nil {
		return err
	}
	return json.Unmarshal(buffer.Bytes(), into)
}

// everyPage reads a list to its end. split takes the items of a page and the address of the next one out of it; of that
// address only marker and offset are used, because it may name a host that only the service knows.
func everyPage[P, T any](
	ctx context.Context, client *gophercloud.ServiceClient, address string, query url.Values,
	split func(*P) (items []T, next string), id func(T) string,
) ([]T, error) {
	all, seen := []T{}, map[string]bool{} // what is made meanwhile shifts the pages
	for {
		var page P
		if err := getPage(ctx, client, address+"?"+query.Encode(), &page); err != nil {
			return nil, classify(projectName(client.Type), err)
		}
		items, next := split(&page)
		isNew := false
		for _, item := range items {
			if !seen[id(item)] {
				seen[id(item)], isNew = true, true
				all = append(all, item)
			}
		}
		following := parameters(next)
		if len(following) == 0 || !isNew {
			return all, nil
		}
		maps.Copy(query, following)
	}
}

// parameters are the marker and the offset of an address, if any.
func parameters(address string) url.Values {
	found := url.Values{}
	if u, err := url.Parse(address); err == nil {
		for _, name := range []string{"marker", "offset"} {
			if value := u.Query().Get(name); value != "" {
				found.Set(name, value)
			}
		}
	}
	return found
}

// linkTo is the address of the next page.
func linkTo(links []link) string {
	for _, l := range links {
		if l.Rel == "next" {
			return l.Href
		}
	}
	return ""
}

// convert makes entries of ours of a list; nil when it could not be read.
func convert[F, T any](found []F, err error, entry func(F) T) ([]T, error) {
	if err != nil {
		return nil, err
	}
	out := make([]T, len(found))
	for i := range found {
		out[i] = entry(found[i])
	}
	return out, nil
}
