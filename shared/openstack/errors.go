package openstack

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/gophercloud/gophercloud/v2"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// maxMessage bounds what is passed on of a service's own words.
const maxMessage = 500

// statusCodes are the refusals that keep their status on the way to the caller.
var statusCodes = map[int]apperr.Code{
	http.StatusBadRequest:            apperr.Invalid,
	http.StatusUnauthorized:          apperr.Unauthenticated,
	http.StatusForbidden:             apperr.Forbidden,
	http.StatusNotFound:              apperr.NotFound,
	http.StatusConflict:              apperr.Conflict,
	http.StatusRequestEntityTooLarge: apperr.TooLarge,
	http.StatusTooManyRequests:       apperr.RateLimited,
	http.StatusNotAcceptable:         apperr.Unsupported,
	http.StatusNotImplemented:        apperr.Unsupported,
	http.StatusServiceUnavailable:    apperr.Unavailable,
	http.StatusGatewayTimeout:        apperr.Timeout,
}

// classify gives an error of a call its code, and the service's words where they are meant for the caller.
//
// Traps: gophercloud's ErrUnexpectedResponseCode comes as a value or a pointer and holds the whole body, so
// it must not be logged raw; Nova says 403 for a quota, Neutron 409 with "OverQuota", and Nova 413 in old
// releases; Glance answers in HTML.
func classify(service string, err error) error {
	if err == nil {
		return nil
	}
	if _, ours := errors.AsType[*apperr.Error](err); ours {
		return err
	}
	if refused, ok := errors.AsType[gophercloud.ErrUnexpectedResponseCode](err); ok {
		return refusal(service, &refused)
	}
	if refused, ok := errors.AsType[*gophercloud.ErrUnexpectedResponseCode](err); ok {
		return refusal(service, refused)
	}
	if sent, ok := errors.AsType[*url.Error](err); ok {
		return exchange(service, sent.Err) // without the URL: it may hold filters that the log need not know
	}
	// A torn, oversize or senseless body, or a deadline in the middle of it.
	return failure(service, err)
}

func refusal(service string, r *gophercloud.ErrUnexpectedResponseCode) error {
	cause := errors.New(service + " answered " + r.Method + " with " + strconv.Itoa(r.Actual))
	text := message(r.Body)
	code, known := statusCodes[r.Actual]
	switch {
	case !known:
		return apperr.Wrap(apperr.BadGateway, cause, "%s answered with status %d", service, r.Actual)
	case code == apperr.Unavailable || code == apperr.Timeout:
		if strings.Contains(text,
			"Keystone service is temporarily unavailable") { // keystonemiddleware, in front of every service
			service, cause = "keystone", errors.Join(apperr.ErrNotSent, cause) // the service itself has done nothing
		}
		e := apperr.Wrap(code, cause, "%s is not available", service)
		e.RetryAfter = retryAfter(r.ResponseHeader)
		return e
	case (code == apperr.Forbidden || code == apperr.Conflict || code == apperr.TooLarge) && isQuota(string(r.Body)):
		code = apperr.Quota
	}
	if text == "" {
		text = http.StatusText(r.Actual)
	}
	e := apperr.Wrap(code, cause, "%s: %s", service, text)
	if code == apperr.RateLimited {
		e.RetryAfter = retryAfter(r.ResponseHeader)
	}
	return e
}

// exchange is an error before there was an answer: a connection that was refused, closed or silent.
func exchange(service string, err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		err = errors.Join(apperr.ErrNotSent, err)
	}
	if code := apperr.CodeOf(failure(service, err)); code != apperr.BadGateway {
		return failure(service, err)
	}
	e := apperr.Wrap(apperr.Unavailable, err, "%s cannot be reached", service)
	e.RetryAfter = defaultRetryAfter
	return e
}

func failure(service string, err error) error {
	timeout, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err)
	switch {
	case errors.Is(err, context.Canceled):
		return apperr.Wrap(apperr.ClientGone, err, "the request was canceled")
	case errors.Is(err, context.DeadlineExceeded) || ok && timeout.Timeout():
		return apperr.Wrap(apperr.Timeout, err, "%s did not answer in time", service)
	}
	return apperr.Wrap(apperr.BadGateway, err, "%s gave an answer that cannot be read", service)
}

// quotaTexts are what services say of a quota, in lower case: Nova, Neutron, Cinder, Octavia, Barbican, Glance and
// Keystone, and oslo.limit, by which Nova and Glance enforce unified limits.
var quotaTexts = []string{
	"overquota", "quota exceeded", "maximum number of", "availablequota", "exceeds allowed", "quota has been",
	"quota reached for", "exceeds the quota", "is over a limit for", "is over limit of", "limit exceeded",
	"limit has been exceeded", "exceed the limit", "maximum allowed limit", "already exceeded for user",
	"content exceeds maximum", "path exceeds maximum",
}

func isQuota(body string) bool {
	body = strings.ToLower(body)
	return slices.ContainsFunc(quotaTexts, func(text string) bool { return strings.Contains(body, text) })
}

const defaultRetryAfter = 2 * time.Second

func retryAfter(h http.Header) time.Duration {
	if s, err := strconv.Atoi(h.Get("Retry-After")); err == nil && s > 0 {
		return min(time.Duration(s)*time.Second, time.Hour)
	}
	return defaultRetryAfter
}

var tags = regexp.MustCompile(`<title>[^<]*</title>|<h1>[^<]*</h1>|<[^>]*>`)

// message finds a service's own words in the body of a refusal: {"anything": {"message": "..."}} of Nova, Keystone,
// Neutron and Cinder, {"errors": [{"detail": "..."}]} of Placement, {"faultstring": "..."} of Octavia,
// {"description": "..."} of Barbican, or the text of Glance's HTML.
func message(body []byte) string {
	var fields map[string]json.RawMessage
	if json.Unmarshal(body, &fields) == nil {
		for _, raw := range fields {
			var inner struct {
				Message string `json:"message"`
			}
			if json.Unmarshal(raw, &inner) == nil && inner.Message != "" {
				return clean(inner.Message)
			}
			var list []struct {
				Detail string `json:"detail"`
			}
			if json.Unmarshal(raw, &list) == nil && len(list) > 0 && list[0].Detail != "" {
				return clean(list[0].Detail)
			}
		}
		// message is of a part before the service itself, such as keystonemiddleware
		for _, name := range []string{"message", "faultstring", "description"} {
			var text string
			if json.Unmarshal(fields[name], &text) == nil && text != "" {
				return clean(tags.ReplaceAllString(text, " "))
			}
		}
		return ""
	}
	return clean(tags.ReplaceAllString(string(body), " "))
}

func clean(text string) string {
	text = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(text, "\uFFFD"), func(r rune) bool {
		return unicode.IsSpace(r) || unicode.IsControl(r)
	}), " ")
	if runes := []rune(text); len(runes) > maxMessage {
		return string(runes[:maxMessage]) + "…"
	}
	return text
}

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

// unauthorized validates a token that a service rejects; nil if Keystone rejects it, too. While Keystone is
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
			"this call to %s: they lack service %s, method %s, path %s",
			b.service, b.serviceType, req.Method, req.URL.Path)
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
		failed := b.session.unavailable(ctx, foreign.services)
		if len(failed) == 0 {
			return apperr.Wrap(apperr.BadGateway, cause, "%s answered with status 500: it could not use %s", b.service,
				or(names(foreign.services)))
		}
		e := apperr.Wrap(apperr.Unavailable, cause, "%s is not available, and %s cannot do without it",
			strings.Join(names(failed), " and "), b.service)
		e.RetryAfter = defaultRetryAfter
		return e
	}
	return nil
}

// unavailable probes the services, and lists those that do not answer. It ignores those that the catalog lacks.
func (s *Session) unavailable(ctx context.Context, services []string) (failed []string) {
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
				failed = append(failed, service)
			}
		})
	}
	group.Wait()
	slices.Sort(failed)
	return failed
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
