package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
)

// Error is an answer that reports a failure, or that did not come.
type Error struct {
	Status     int // 0 = no answer came
	Code       Code
	Detail     string
	Fields     []FieldError
	RequestID  string
	RetryAfter string // in seconds
	IsCutOff   bool   // no answer came, or an unknown outcome: cloudfn may have done what was requested

	nameField func(string) string // as of Options
}

// newError reads a problem. Of any other answer (a proxy's page, say) only the status is shown.
func newError(resp *http.Response, body []byte) *Error {
	header := resp.Header
	e := &Error{
		Status: resp.StatusCode, RequestID: header.Get("X-Request-Id"), RetryAfter: header.Get("Retry-After"),
	}
	var problem Problem
	if err := json.Unmarshal(body, &problem); err != nil || problem.Detail == "" {
		e.Detail = fmt.Sprintf("the answer was %d %s, and not one of cloudfn's: is --url or CLOUDFN_URL right?",
			e.Status, http.StatusText(e.Status))
		return e
	}
	e.Code, e.Detail = problem.Code, problem.Detail
	if problem.Outcome != nil {
		e.IsCutOff, e.RetryAfter = true, "" // what has no id must not be sent again before it was read back
	}
	if problem.Errors != nil {
		e.Fields = *problem.Errors
	}
	if e.isWrongPath() { // the API has every path of the client
		e.Code, e.Fields = "", nil
		e.Detail = "there is a cloudfn, but not at this URL: is --url or CLOUDFN_URL right?"
	}
	return e
}

// isWrongPath reports whether the server has no such path at all; otherwise it has the path, and found nothing there.
func (e *Error) isWrongPath() bool {
	return e.Code == CodeNotFound && slices.ContainsFunc(e.Fields, func(f FieldError) bool { return f.Field == "path" })
}

// Error is one line: what is wrong, in which fields, and what would be right there.
func (e *Error) Error() string {
	text := e.Detail
	for _, f := range e.Fields {
		if e.nameField != nil {
			name := e.nameField(f.Field)
			text = strings.ReplaceAll("; "+text, "; "+f.Field+": ", "; "+name+": ")[len("; "):]
			f.Field = name
		}
		if !strings.Contains(text, f.Detail) {
			text += fmt.Sprintf("; %s %s", f.Field, f.Detail)
		}
		if f.Allowed != nil {
			of := ""
			if len(e.Fields) > 1 {
				of = f.Field + ": "
			}
			text = WithAllowed(text, of, *f.Allowed)
		}
	}
	if e.RetryAfter != "" {
		text += fmt.Sprintf(" (try again in %s s)", e.RetryAfter)
	}
	if e.Status >= http.StatusInternalServerError && e.RequestID != "" {
		text += " [" + e.RequestID + "]"
	}
	return strings.ReplaceAll(text, "\n", " ")
}

// WithAllowed adds what would be right to a text, unless it says so. of is before the list.
func WithAllowed(text, of string, allowed []string) string {
	list := strings.Join(allowed, ", ")
	if strings.Contains(text, list) { // of an empty list, too
		return text
	}
	return text + " (allowed: " + of + list + ")"
}

// ExitCode is the code that the program ends with.
func (e *Error) ExitCode() int {
	switch {
	case IsTransient(e):
		return exit.Unavailable
	case e.Status == http.StatusUnauthorized, e.Status == http.StatusForbidden:
		return exit.Denied
	case e.Status == http.StatusNotFound && e.Code != "": // otherwise the URL is wrong
		return exit.NotFound
	case e.Status == http.StatusConflict, e.Status == http.StatusPreconditionFailed:
		return exit.Conflict
	}
	return exit.Usage
}

// IsTransient reports whether an error is an *Error after which the same request may succeed later.
func IsTransient(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && (e.Status == 0 || e.Status == http.StatusTooManyRequests || e.Status >= http.StatusInternalServerError)
}

// HasStatus reports whether an error is an answer of this status.
func HasStatus(err error, status int) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Status == status
}

// noAnswer says in one line why no answer came.
func noAnswer(req *http.Request, err error) error {
	if ctx := req.Context(); ctx.Err() != nil {
		return context.Cause(ctx)
	}
	host := req.URL.Scheme + "://" + req.URL.Host
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		const format = "%s cannot be reached (%v): is it running, and is --url or CLOUDFN_URL right?"
		return &Error{Detail: fmt.Sprintf(format, host, op.Err)}
	}
	if inner, ok := errors.AsType[*url.Error](err); ok {
		err = inner.Err
	}
	return &Error{Detail: fmt.Sprintf("%s broke off: %v", host, err), IsCutOff: true}
}
