package openstack

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// The time limits for finding the service at fault.
const (
	askKeystoneTimeout = 10 * time.Second
	probeTimeout       = 2 * time.Second
)

// peeked is how much of a 500 is read: Nova's own has 200 bytes.
const peeked = 8 << 10

// blame is a session's transport to a service other than Keystone. Services report the outage of another one as their
// own: Glance answers 401 while Keystone is down, and Nova 500 while Neutron is. blame finds the service at fault.
type blame struct {
	session     *Session
	serviceType string // in the catalog
	service     string // as in errors: nova
	base        http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (b blame) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := b.base.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	switch resp.StatusCode {
	case http.StatusUnauthorized:
		err = b.unauthorized(req)
	case http.StatusInternalServerError:
		err = b.broken(req.Context(), resp)
	}
	if err != nil {
		_ = resp.Body.Close()
		return nil, err
	}
	return resp, nil
}

// unauthorized asks Keystone about a token that a service rejects; nil if Keystone rejects it, too. While Keystone is
// down, Glance rejects every token (delay_auth_decision).
func (b blame) unauthorized(req *http.Request) error {
	ctx, cancel := context.WithTimeout(req.Context(), askKeystoneTimeout)
	defer cancel()
	who, err := b.session.cloud.Validate(ctx, b.session.token)
	switch {
	case apperr.CodeOf(err) == apperr.Unauthenticated:
		return nil
	case b.session.catalog != nil && (err == nil || apperr.CodeOf(err) == apperr.Forbidden):
		// the session of a login: its access rules may not allow the call, and a trust's token cannot be validated
		return nil
	case err == nil && !b.permits(who, req):
		return apperr.New(apperr.Forbidden, "the access rules of the token's application credential do not permit "+
			"this call to %s: they lack service %s, method %s, path %s", b.service, b.serviceType, req.Method, req.URL.Path)
	case err == nil:
		err = errors.New("keystone accepts the token")
	}
	e := apperr.As(err)
	if e.Code == apperr.Internal {
		e = apperr.Wrap(apperr.Unavailable, err,
			"%s rejects a token that keystone accepts: it cannot reach keystone, or is misconfigured", b.service)
	}
	refused := *e // with the promise that the service has done nothing
	refused.Cause = errors.Join(apperr.ErrNotSent, e.Cause)
	if refused.RetryAfter == 0 {
		refused.RetryAfter = defaultRetryAfter
	}
	return &refused
}

// permits reports whether the token's access rules permit the call. A service behind a prefix may know its paths
// without it: /v2.1/servers for /compute/v2.1/servers.
func (b blame) permits(who domain.Identity, req *http.Request) bool {
	if who.AccessRules == nil {
		return true
	}
	for path := req.URL.Path; path != ""; path = path[1+strings.Index(path[1:]+"/", "/"):] {
		if slices.ContainsFunc(who.AccessRules, func(rule domain.AccessRule) bool {
			return rule.Permits(b.serviceType, req.Method, path)
		}) {
			return true
		}
	}
	return false
}

// foreignErrors are texts in Nova's 500 that show that another service failed, and the candidates: Nova shows the class
// of its exception, which for keystoneauth is the same for every service.
var foreignErrors = []struct {
	text     string
	services []string
}{
	{"neutronclient.", []string{"network"}},
	{"glanceclient.", []string{"image"}},
	{"cinderclient.", []string{"volumev3", "block-storage"}},
	{"keystoneauth1.", []string{"network", "image", "placement", "volumev3", "block-storage", "identity"}},
}

// broken finds the service that Nova could not use, among the candidates; nil if all of them answer.
func (b blame) broken(ctx context.Context, resp *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(resp.Body, peeked)) // an error comes again when the rest is read
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(text), resp.Body), resp.Body}
	for _, foreign := range foreignErrors {
		if !bytes.Contains(text, []byte(foreign.text)) {
			continue
		}
		cause := errors.New(b.service + " answered with 500: " + message(text))
		away := b.session.away(ctx, foreign.services)
		if len(away) == 0 {
			return apperr.Wrap(apperr.BadGateway, cause, "%s answered with status 500: it could not use %s", b.service,
				or(names(foreign.services)))
		}
		e := apperr.Wrap(apperr.Unavailable, cause, "%s is not available, and %s cannot do without it",
			strings.Join(names(away), " and "), b.service)
		e.RetryAfter = defaultRetryAfter
		return e
	}
	return nil
}

// away probes the services, and lists those that do not answer. It ignores those that the catalog lacks.
func (s *Session) away(ctx context.Context, services []string) (away []string) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	all, err := s.services(ctx)
	if err != nil {
		return []string{"identity"}
	}
	var mu sync.Mutex
	var group sync.WaitGroup
	for _, service := range services {
		endpoint, err := s.override(all, service), error(nil)
		if endpoint == "" {
			endpoint, err = s.choose(all, service)
		}
		if service == "identity" {
			endpoint, err = s.cloud.identity, nil
		}
		if err != nil {
			continue
		}
		group.Go(func() {
			_, err, _ := s.cloud.probes.Do(endpoint, func() (any, error) { return nil, s.cloud.probe(ctx, endpoint) })
			if err != nil {
				mu.Lock()
				defer mu.Unlock()
				away = append(away, service)
			}
		})
	}
	group.Wait()
	slices.Sort(away)
	return away
}

// projectNames are the names of services in errors.
var projectNames = map[string]string{
	"compute": "nova", "network": "neutron", "image": "glance", "volumev3": "cinder", "block-storage": "cinder",
	"identity": "keystone", "block-store": "cinder", "load-balancer": "octavia", "key-manager": "barbican",
}

func projectName(service string) string {
	if name, ok := projectNames[service]; ok {
		return name
	}
	return service
}

func names(services []string) []string {
	list := make([]string, len(services))
	for i, service := range services {
		list[i] = projectName(service)
	}
	return slices.Compact(list)
}

// or lists alternatives.
func or(list []string) string {
	if len(list) < 2 {
		return strings.Join(list, "")
	}
	return strings.Join(list[:len(list)-1], ", ") + " or " + list[len(list)-1]
}
