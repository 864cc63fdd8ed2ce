package openstack

import (
	"context"
	"maps"
	"net/url"

	"github.com/gophercloud/gophercloud/v2"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

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
