package openstack

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// catalog is Keystone's service catalog, with only what choosing an endpoint needs.
type catalog []struct {
	Type      string `json:"type"`
	Endpoints []struct {
		Interface string `json:"interface"`
		RegionID  string `json:"region_id"`
		URL       string `json:"url"`
	} `json:"endpoints"`
}

const catalogTimeout = 15 * time.Second

// endpoint finds where a service is. The catalog is read once per scope and kept for a few minutes.
func (s *Session) endpoint(ctx context.Context, service string) (string, error) {
	if at := s.overrideOf(service); at != "" && s.region == "" { // it needs no catalog
		return s.versioned(ctx, service, at)
	}
	found, err := s.services(ctx)
	if err != nil {
		return "", err
	}
	at := s.override(found, service)
	if at == "" {
		at, err = s.choose(found, service)
	}
	if err != nil {
		return "", err
	}
	return s.versioned(ctx, service, at)
}

// choose takes the endpoint of the session's region. An unknown region that the caller has named is the caller's
// mistake.
func (s *Session) choose(found catalog, service string) (string, error) {
	if s.region == "" {
		return found.endpoint(service, s.cloud.region, s.cloud.iface)
	}
	if known := found.allRegions(); !slices.Contains(known, s.region) {
		return "", apperr.Unknown("region", "region", s.region, known...)
	}
	return found.endpoint(service, s.region, s.cloud.iface)
}

// services is the session's catalog: the one that came with its login, or one that is read.
func (s *Session) services(ctx context.Context) (catalog, error) {
	if s.catalog != nil {
		return s.catalog, nil
	}
	return s.readCatalog(ctx)
}

func (s *Session) readCatalog(ctx context.Context) (catalog, error) {
	if found, ok := s.cloud.catalogs.Get(s.scope); ok {
		return found, nil
	}
	return shared(ctx, &s.cloud.catalogSF, s.scope, "keystone", catalogTimeout,
		func(ctx context.Context) (catalog, error) {
			found, err := s.requestCatalog(ctx)
			if err != nil {
				return nil, err
			}
			s.cloud.catalogs.Add(s.scope, found)
			return found, nil
		})
}

// requestCatalog reads the catalog with the session's token. Newer Keystones enforce the access rules of application
// credentials on their own API. With such a token they answer only its validation, which has the catalog, too.
func (s *Session) requestCatalog(ctx context.Context) (catalog, error) {
	type holder struct {
		Catalog catalog `json:"catalog"`
	}
	var body holder
	keystone := s.keystone()
	err := get(ctx, keystone, keystone.ServiceURL("auth", "catalog"), &body)
	if code := apperr.CodeOf(err); code != apperr.Unauthenticated && code != apperr.Forbidden {
		return body.Catalog, err
	}
	var validated struct {
		Token holder `json:"token"`
	}
	if s.validation(ctx, "", &validated) != nil {
		return nil, err
	}
	return validated.Token.Catalog, nil
}

// endpoint chooses. A region is never guessed when the catalog has several. Of several endpoints in one region the
// first is taken, as keystoneauth does.
func (c catalog) endpoint(service, region, iface string) (string, error) {
	found := c.endpoints(service, region, iface)
	if len(found) == 0 {
		return "", apperr.New(apperr.Unsupported, "the cloud offers no %s service (interface %s, region %q)",
			service, iface, region)
	}
	regions := distinct(found, func(o offer) string { return o.region })
	if region == "" && len(regions) > 1 {
		return "", apperr.New(apperr.Internal, "the catalog has %s in several regions (%s): "+
			"OS_REGION_NAME, or region_name in clouds.yaml, must choose one", service, strings.Join(regions, ", "))
	}
	return strings.TrimSuffix(found[0].url, "/") + "/", nil
}

// endpoints lists the endpoints of a service in a region, in the order of the catalog; region "" = all regions.
func (c catalog) endpoints(service, region, iface string) []offer {
	return slices.DeleteFunc(c.offers(), func(o offer) bool {
		return o.service != service || o.iface != iface || region != "" && o.region != region
	})
}

// offer is an endpoint of the catalog.
type offer struct{ service, iface, region, url string }

func (c catalog) offers() (list []offer) {
	for _, service := range c {
		for _, e := range service.Endpoints {
			list = append(list, offer{service.Type, e.Interface, e.RegionID, e.URL})
		}
	}
	return list
}

// list returns the sorted distinct values that pick takes of the endpoints; it ignores "".
func (c catalog) list(pick func(offer) string) []string { return distinct(c.offers(), pick) }

func distinct(offers []offer, pick func(offer) string) []string {
	found := map[string]bool{}
	for _, o := range offers {
		found[pick(o)] = true
	}
	delete(found, "")
	return slices.Sorted(maps.Keys(found))
}

// regions lists the regions with an endpoint of the service.
func (c catalog) regions(service string) []string {
	return c.list(func(e offer) string {
		if e.service != service {
			return ""
		}
		return e.region
	})
}

// interfaces lists the interfaces of the service's endpoints.
func (c catalog) interfaces(service string) []string {
	return c.list(func(e offer) string {
		if e.service != service {
			return ""
		}
		return e.iface
	})
}

// allRegions lists the regions of all services.
func (c catalog) allRegions() []string { return c.list(func(e offer) string { return e.region }) }

// Regions lists the regions of the catalog, by name.
func (s *Session) Regions(ctx context.Context) ([]domain.Region, error) {
	found, err := s.services(ctx)
	if err != nil {
		return nil, err
	}
	names := found.allRegions()
	all := make([]domain.Region, len(names))
	for n, name := range names {
		isDefault := name == s.cloud.region || s.cloud.region == "" && len(names) == 1
		all[n] = domain.Region{Name: name, Default: isDefault, Services: found.list(func(o offer) string {
			if o.region != name {
				return ""
			}
			return o.service
		})}
	}
	return all, nil
}

// serviceTypes are the types under which catalogs list a service, other than its usual one.
var serviceTypes = map[string][]string{
	"volumev3":      {"block-storage", "block-store"},
	"load-balancer": {"octavia"},
}

// clientOf is a client for a service that catalogs list under several types.
func (s *Session) clientOf(
	ctx context.Context, service, base, microversion string,
) (*gophercloud.ServiceClient, error) {
	client, err := s.client(ctx, service, base, microversion)
	for _, other := range serviceTypes[service] {
		if apperr.CodeOf(err) != apperr.Unsupported {
			break
		}
		if found, otherwise := s.client(ctx, other, base, microversion); otherwise == nil {
			return found, nil
		}
	}
	return client, err
}

// HasService reports whether the catalog has a service in the session's region, by its usual type.
func (s *Session) HasService(ctx context.Context, service string) (bool, error) {
	_, err := s.clientOf(ctx, service, "", "")
	if apperr.CodeOf(err) == apperr.Unsupported {
		return false, nil
	}
	return err == nil, err
}

// catalogCache keeps catalogs by scope. It is not an expirable.LRU, because that starts a goroutine which never ends,
// and there is a catalogCache for each other cloud.
type catalogCache struct {
	now     func() time.Time
	entries *lru.Cache[string, keptCatalog]
}

type keptCatalog struct {
	catalog catalog
	at      time.Time
}

const maxCatalogs = 1000

func newCatalogCache() *catalogCache {
	return &catalogCache{now: time.Now, entries: newCache[keptCatalog](maxCatalogs)}
}

// Add keeps a scope's catalog for catalogTTL.
func (c *catalogCache) Add(scope string, found catalog) {
	c.entries.Add(scope, keptCatalog{found, c.now()})
}

// Get is the catalog that is kept of a scope.
func (c *catalogCache) Get(scope string) (catalog, bool) {
	kept, ok := c.entries.Get(scope)
	if !ok || c.now().Sub(kept.at) > catalogTTL {
		return nil, false
	}
	return kept.catalog, true
}

func newCache[V any](size int) *lru.Cache[string, V] {
	cache, err := lru.New[string, V](size)
	if err != nil {
		panic(err) // only of a size that is not positive
	}
	return cache
}

// InRegion is the same session in another region of the catalog; "" is the region of this process. A region that the
// catalog does not have is an Invalid request.
func (s *Session) InRegion(region string) *Session {
	return &Session{
		cloud: s.cloud, token: s.token, scope: s.scope, region: region, project: s.project, userID: s.userID,
		catalog: s.catalog, actsAs: s.actsAs,
	}
}

// override is the endpoint that is set for a service, which holds in the region of this process only: without
// OS_REGION_NAME that is the only region of the catalog.
func (s *Session) override(all catalog, service string) string {
	own := s.cloud.region
	if regions := all.allRegions(); own == "" && len(regions) == 1 {
		own = regions[0]
	}
	if s.region != "" && s.region != own {
		return ""
	}
	return s.overrideOf(service)
}

// overrideOf is the endpoint that is set for a service. Cinder's gets its version and the project, which the catalog's
// usually has: a Cinder before its microversion 3.67 cannot do without it.
func (s *Session) overrideOf(service string) string {
	at := s.cloud.overrides.of(service)
	if at == "" || service != "volumev3" {
		return at
	}
	return s.cinderEndpoint(at)
}

// cinderEndpoint adds the version and the project to an endpoint of Cinder that lacks them.
func (s *Session) cinderEndpoint(at string) string {
	if _, version := splitVersion(at); version == "" {
		at += "v3/"
	}
	project := s.project
	if s.catalog == nil { // it was opened with a caller's token, and not by a login
		project = cmp.Or(project, s.scope)
	}
	if project != "" && strings.HasSuffix(at, "/v3/") {
		at += project + "/"
	}
	return at
}

// Compute may be in the catalog without a version (https://cloud.example.com/compute), and answers 404 or a list of
// versions to everything there. Its endpoint then says where version 2.1 is. It may also be there with its legacy v2,
// where Nova silently ignores microversions, and with them the tags of a create call; the endpoint above it then says
// where version 2.1 is. Other services need no such call: their one version is added, or replaces an older one.
// Placement has no versions in its paths.

// discovered is what an unversioned endpoint has said.
type discovered struct {
	at   string // the versioned endpoint
	when time.Time
}

const (
	maxDiscovered = 100
	// undocumentedTTL is how long an endpoint that gave no version document is taken as it is.
	undocumentedTTL = 10 * time.Second
)

func newVersionCache() *lru.Cache[string, discovered] { return newCache[discovered](maxDiscovered) }

// versionPath finds a version at the end of an endpoint, or before the id of a project.
var versionPath = regexp.MustCompile(`/(v[0-9]+(?:\.[0-9]+)?)(?:/[^/]+)?/$`)

// splitVersion returns an endpoint without its version and the id of a project, and that version; "" = it has none.
func splitVersion(endpoint string) (root, version string) {
	found := versionPath.FindStringSubmatchIndex(endpoint)
	if found == nil {
		return endpoint, ""
	}
	return endpoint[:found[0]+1], endpoint[found[2]:found[3]]
}

// versioned is the endpoint of compute 2.1. It requests an endpoint of another version, or of none, once in five
// minutes. Cinder is taken as 3 where its endpoint has no version.
func (s *Session) versioned(ctx context.Context, service, endpoint string) (string, error) {
	_, version := splitVersion(endpoint)
	if version == "" && projectName(service) == "cinder" {
		return s.cinderEndpoint(endpoint), nil
	}
	if service != "compute" || version == "v2.1" {
		return endpoint, nil
	}
	if known, ok := s.cloud.versions.Get(endpoint); ok && time.Since(known.when) < catalogTTL {
		return known.at, nil
	}
	return shared(ctx, &s.cloud.versionsSF, endpoint, "nova", catalogTimeout,
		func(ctx context.Context) (string, error) {
			at, isDocument, err := s.discover(ctx, endpoint)
			if err == nil {
				when := time.Now()
				if !isDocument { // it may be a proxy's word, while the service starts
					when = when.Add(undocumentedTTL - catalogTTL)
				}
				s.cloud.versions.Add(endpoint, discovered{at, when})
			}
			return at, err
		})
}

// discover reads the version document of compute. An endpoint without a version that has no document is taken as it is.
func (s *Session) discover(ctx context.Context, endpoint string) (at string, isDocument bool, err error) {
	root, legacy := splitVersion(endpoint)
	client := &gophercloud.ServiceClient{ProviderClient: s.provider(), Endpoint: root}
	var document versionDocument
	_, err = client.Get(ctx, root, &document, &gophercloud.RequestOpts{OkCodes: []int{
		http.StatusOK,
		http.StatusMultipleChoices,
	}})
	refused, isRefused := errors.AsType[gophercloud.ErrUnexpectedResponseCode](err)
	switch code := apperr.CodeOf(classify("nova", err)); {
	case isRefused && refused.Actual < http.StatusInternalServerError && code != apperr.RateLimited:
		// no document
	case !isRefused && code == apperr.BadGateway: // there is a page that is not JSON
	case err != nil:
		return "", false, classify("nova", err)
	default:
		isDocument = true
	}
	var offered []string
	switch id := document.Version.ID; {
	case strings.HasPrefix(id, "v2.1"):
		return root, true, nil
	case id != "":
		offered = append(offered, id)
	case len(document.Versions) == 0 && legacy == "":
		return endpoint, isDocument, nil
	}
	for _, v := range document.Versions {
		if v.ID == "v2.1" {
			return root + v.folder() + "/", true, nil
		}
		offered = append(offered, v.ID)
	}
	if legacy != "" && !slices.Contains(offered, legacy) {
		offered = append(offered, legacy)
	}
	return "", isDocument, apperr.New(apperr.Unsupported, "the cloud's compute service at %s offers %s; v2.1 is needed",
		endpoint, strings.Join(offered, ", "))
}

// folder is the last part of the path of a version. Of the link nothing else is taken: behind a proxy it may name a
// host or a path that only the service knows, and the token goes where the catalog says.
func (v apiVersion) folder() string {
	for _, l := range v.Links {
		if u, err := url.Parse(l.Href); l.Rel == "self" && err == nil && path.Base(u.Path) != "/" &&
			path.Base(u.Path) != "." {
			return path.Base(u.Path)
		}
	}
	return v.ID
}
