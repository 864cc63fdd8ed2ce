package openstack

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/gophercloud/gophercloud/v2"

	"github.com/cloudfn/cloudfn/shared/apperr"
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
