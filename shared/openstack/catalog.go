package openstack

import (
	"context"
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
	if at := s.cloud.overrides.of(service); at != "" && s.region == "" {
		return s.versioned(ctx, service, at)
	}
	found, err := s.services(ctx)
	if err != nil {
		return "", err
	}
	at, err := s.choose(found, service)
	if set := s.override(found, service); set != "" {
		at, err = set, nil
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

// endpoint chooses; a region is never guessed when the catalog has several.
func (c catalog) endpoint(service, region, iface string) (string, error) {
	var urls, regions []string
	for _, entry := range c {
		if entry.Type != service {
			continue
		}
		for _, e := range entry.Endpoints {
			if e.Interface == iface && (region == "" || e.RegionID == region) {
				urls, regions = append(urls, e.URL), append(regions, e.RegionID)
			}
		}
	}
	switch {
	case len(urls) == 0:
		return "", apperr.New(apperr.Unsupported, "the cloud offers no %s service (interface %s, region %q)", service, iface,
			region)
	case len(urls) > 1:
		return "", apperr.New(apperr.Internal, "the catalog has %s in several regions (%s): OS_REGION_NAME must choose one",
			service, strings.Join(regions, ", "))
	}
	return strings.TrimSuffix(urls[0], "/") + "/", nil
}

// regions lists the regions that have an endpoint of the service: of the interface, or of any when it is "".
func (c catalog) regions(service, iface string) []string {
	var found []string
	for _, entry := range c {
		for _, e := range entry.Endpoints {
			if entry.Type == service && (iface == "" || e.Interface == iface) && !slices.Contains(found, e.RegionID) {
				found = append(found, e.RegionID)
			}
		}
	}
	slices.Sort(found)
	return found
}

// interfaces lists the interfaces that the service has an endpoint of.
func (c catalog) interfaces(service string) []string {
	var found []string
	for _, entry := range c {
		for _, e := range entry.Endpoints {
			if entry.Type == service && !slices.Contains(found, e.Interface) {
				found = append(found, e.Interface)
			}
		}
	}
	slices.Sort(found)
	return found
}
