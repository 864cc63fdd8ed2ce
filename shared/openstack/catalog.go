package openstack

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
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
			var body struct {
				Catalog catalog `json:"catalog"`
			}
			keystone := s.keystone()
			if err := get(ctx, keystone, keystone.ServiceURL("auth", "catalog"), &body); err != nil {
				return nil, err
			}
			s.cloud.catalogs.Add(s.scope, body.Catalog)
			return body.Catalog, nil
		})
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
