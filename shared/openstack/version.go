package openstack

import (
	"context"
	"errors"
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
)

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

// versioned is the endpoint of compute 2.1. It asks an endpoint of another version, or of none, once in five minutes.
// Cinder is taken as 3 where its endpoint has no version.
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
