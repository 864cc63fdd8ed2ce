package httpx

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// statusOf is the only place where an error becomes an HTTP status.
var statusOf = map[apperr.Code]int{
	apperr.Invalid:          http.StatusBadRequest,
	apperr.Unauthenticated:  http.StatusUnauthorized,
	apperr.Forbidden:        http.StatusForbidden,
	apperr.Quota:            http.StatusForbidden,
	apperr.DelegationLost:   http.StatusForbidden,
	apperr.Suspended:        http.StatusForbidden,
	apperr.NotFound:         http.StatusNotFound,
	apperr.MethodNotAllowed: http.StatusMethodNotAllowed,
	apperr.NotAcceptable:    http.StatusNotAcceptable,
	apperr.Conflict:         http.StatusConflict,
	apperr.Precondition:     http.StatusPreconditionFailed,
	apperr.TooLarge:         http.StatusRequestEntityTooLarge,
	apperr.UnsupportedMedia: http.StatusUnsupportedMediaType,
	apperr.Unprocessable:    http.StatusUnprocessableEntity,
	apperr.UnsupportedKind:  http.StatusUnprocessableEntity,
	apperr.UnsupportedHere:  http.StatusUnprocessableEntity,
	apperr.RateLimited:      http.StatusTooManyRequests,
	apperr.ClientGone:       499, // nginx's; nobody is there to read it, but the request log shows it
	apperr.Internal:         http.StatusInternalServerError,
	apperr.Unsupported:      http.StatusNotImplemented,
	apperr.BadGateway:       http.StatusBadGateway,
	apperr.Unavailable:      http.StatusServiceUnavailable,
	apperr.Timeout:          http.StatusGatewayTimeout,
}

// ProblemType is the content type of every error answer (RFC 9457).
const ProblemType = "application/problem+json"

// Problem is the body of every error answer, and of each part of an answer that failed by itself.
type Problem struct {
	Type      string         `json:"type"` // about:blank: the status says it all
	Title     string         `json:"title"`
	Status    int            `json:"status"`
	Detail    string         `json:"detail"`
	Code      apperr.Code    `json:"code"`
	RequestID string         `json:"request_id,omitempty"`
	Outcome   string         `json:"outcome,omitempty"` // unknown: the change may have taken effect all the same
	Errors    []apperr.Field `json:"errors,omitempty"`
}

// NewProblem shows an error to the caller: its code, message and fields, never its cause.
func NewProblem(err error) Problem {
	e := apperr.As(err)
	status := statusOf[e.Code]
	title := http.StatusText(status)
	if title == "" {
		title = "Client Closed Request"
	}
	return Problem{Type: "about:blank", Title: title, Status: status, Detail: e.Message, Code: e.Code, Errors: e.Fields}
}

// failure is the answer for an error. keystone is the URL for WWW-Authenticate.
func failure(err error, requestID, keystone string) Response {
	return failureOf(NewProblem(err), err, requestID, keystone)
}

// unrecorded is the answer for a change that was made, or may have been, and could not be recorded.
func unrecorded(err error, requestID, keystone string) Response {
	p := NewProblem(err)
	p.Outcome = "unknown"
	p.Detail += "; the change may have been made: read it back, or repeat it with the same id"
	return failureOf(p, err, requestID, keystone)
}

func failureOf(p Problem, err error, requestID, keystone string) Response {
	e := apperr.As(err)
	p.RequestID = requestID
	body, _ := json.Marshal(p) //nolint:errchkjson // it has only strings and numbers
	resp := Response{
		Status: p.Status, Header: http.Header{}, ContentType: ProblemType, Body: append(body, '\n'), Code: e.Code,
	}
	if e.Limit != nil {
		resp.limited = true
		limitHeaders(resp.Header, *e.Limit, e.RetryAfter)
	}
	switch {
	case e.Code == apperr.Unauthenticated:
		resp.Header.Set("WWW-Authenticate", `Keystone uri="`+keystone+`"`)
	case e.RetryAfter > 0:
		resp.Header.Set("Retry-After", seconds(e.RetryAfter))
	case e.Code == apperr.Unavailable || e.Code == apperr.RateLimited:
		resp.Header.Set("Retry-After", "2")
	}
	return resp
}

// limitHeaders shows a limit that is used up, as draft-ietf-httpapi-ratelimit-headers has it.
func limitHeaders(h http.Header, limit apperr.Limit, retryAfter time.Duration) {
	per := "w=" + seconds(limit.Window)
	if limit.Window == 0 {
		per = `qu="concurrent-requests"`
	}
	h.Set("RateLimit", fmt.Sprintf("%q;r=0;t=%s", limit.Name, seconds(retryAfter)))
	h.Set("RateLimit-Policy", fmt.Sprintf("%q;q=%d;%s", limit.Name, limit.Quota, per))
}

// WriteError answers with an error, for who serves without an Edge.
func WriteError(w http.ResponseWriter, r *http.Request, err error) {
	id := RequestID(r.Context())
	w.Header().Set("X-Request-Id", id)
	failure(err, id, "").write(w, r.Method == http.MethodHead)
}

func seconds(d time.Duration) string { return strconv.Itoa(int(math.Ceil(d.Seconds()))) }
