// Package apperr owns the one error type of the project: a code that the edge turns into an HTTP
// status, a message that may be shown to the caller, and a cause that may not.
package apperr

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Code says what kind of failure an error is. It is the `code` of a problem answer and never changes
// once published; httpx holds the only table from codes to statuses.
type Code string

// The codes, each with the HTTP status that httpx gives it.
const (
	Invalid          Code = "invalid"            // 400: the request is malformed or a field is wrong
	Unauthenticated  Code = "unauthenticated"    // 401: no token, or one that Keystone does not accept
	Forbidden        Code = "forbidden"          // 403: the caller may not do this
	Quota            Code = "quota_exceeded"     // 403: a quota of the project does not allow it
	DelegationLost   Code = "delegation_lost"    // 403: Keystone does not accept a connection's delegation any more
	Suspended        Code = "suspended"          // 403: the connection's project has suspended it
	NotFound         Code = "not_found"          // 404: absent, or another project's
	MethodNotAllowed Code = "method_not_allowed" // 405: the path exists, the method does not
	NotAcceptable    Code = "not_acceptable"     // 406: no representation that the caller accepts
	Conflict         Code = "conflict"           // 409: the state of the thing does not allow it
	Precondition     Code = "precondition"       // 412: it is not as If-Match says
	TooLarge         Code = "too_large"          // 413: the body is larger than the limit
	UnsupportedMedia Code = "unsupported_media"  // 415: the body is of another content type
	Unprocessable    Code = "unprocessable"      // 422: it is understood, and the cloud has nothing that it fits
	UnsupportedKind  Code = "unsupported_kind"   // 422: OpenStack has no home for resources of the kind
	UnsupportedHere  Code = "unsupported_here"   // 422: the cloud lacks the service of the kind
	RateLimited      Code = "rate_limited"       // 429: over a limit of ours, or OpenStack requires a pause
	ClientGone       Code = "client_gone"        // 499: the caller hung up before the answer
	Internal         Code = "internal"           // 500: a fault of ours; the text stays in the log
	Unsupported      Code = "unsupported"        // 501: the cloud is too old for the request
	BadGateway       Code = "bad_gateway"        // 502: OpenStack gave an answer that makes no sense
	Unavailable      Code = "unavailable"        // 503: Postgres or an OpenStack service is unavailable
	Timeout          Code = "timeout"            // 504: the deadline passed
)

// Field names one faulty part of a request.
type Field struct {
	Field   string   `json:"field"`             // path in the body ("networks[1]") or the query parameter's name
	Detail  string   `json:"detail"`            // what is wrong
	Allowed []string `json:"allowed,omitempty"` // what would be right: values, or ids to choose from
}

// Error is a failure that may be shown to the caller, but for its cause.
type Error struct {
	Code       Code
	Message    string        // for the caller: never holds secrets or internals
	Fields     []Field       // which parts of the request are at fault
	RetryAfter time.Duration // when asking again makes sense; zero = not said
	Limit      *Limit        // of ours, which the request exceeds
	Cause      error         // for the log only
}

// New makes an error that the caller may read.
func New(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Wrap makes an error that the caller may read, with a cause that only the log shows.
func Wrap(code Code, cause error, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...), Cause: cause}
}

// InvalidField refuses one field of a request. allowed may list what would be right.
func InvalidField(field, detail string, allowed ...string) *Error {
	return &Error{
		Code: Invalid, Message: fmt.Sprintf("%s: %s", field, detail),
		Fields: []Field{{Field: field, Detail: detail, Allowed: allowed}},
	}
}

// maxShown bounds what of a wrong value an error repeats, in characters.
const maxShown = 64

// Unknown is the error for a value that is not allowed in a field. what is the kind of value, such as "scope".
func Unknown(field, what, value string, allowed ...string) *Error {
	return InvalidField(field, fmt.Sprintf("unknown %s %s", what, shown(value)), allowed...)
}

// Malformed refuses a value of a field that does not have the form that must describes: "a UUID". It is not for
// secrets.
func Malformed(field, must, value string, allowed ...string) *Error {
	return InvalidField(field, fmt.Sprintf("must be %s, not %s", must, shown(value)), allowed...)
}

// shown is a value as an error repeats it.
func shown(value string) string {
	runes := []rune(value)
	return strconv.QuoteToGraphic(string(runes[:min(len(runes), maxShown)]))
}

// Error is the text for the log: the message and its cause.
func (e *Error) Error() string {
	if e.Cause == nil {
		return e.Message
	}
	return e.Message + ": " + e.Cause.Error()
}

// Unwrap gives the cause to errors.Is and errors.As.
func (e *Error) Unwrap() error { return e.Cause }

// As finds the Error in a chain; any other error becomes an Internal one whose text stays hidden.
func As(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return &Error{Code: Internal, Message: "internal error", Cause: err}
}

// CodeOf is the code of the Error in a chain; "" for nil, Internal for any other error.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	return As(err).Code
}

// ErrNotSent is in the chain of an error when the request surely did not reach the other side.
var ErrNotSent = errors.New("nothing was sent")

// Retryable reports whether the same call may succeed later without any change.
func Retryable(err error) bool {
	switch CodeOf(err) {
	case RateLimited, Internal, BadGateway, Unavailable, Timeout, ClientGone:
		return true
	}
	return false
}

// Rejected reports whether a call that failed surely changed nothing: OpenStack refused it, or it was not sent.
func Rejected(err error) bool {
	code := CodeOf(err)
	return Final(err) || code == Unauthenticated || code == RateLimited || errors.Is(err, ErrNotSent)
}

// Final reports whether OpenStack refused for good: the same call would be refused again.
func Final(err error) bool {
	switch CodeOf(err) {
	case Invalid, Forbidden, Quota, NotFound, Conflict, TooLarge, Unsupported:
		return true
	}
	return false
}

// Limit is a limit on how often one source may do something: Quota times in a burst, and again as Window passes,
// evenly. Without a Window it is a limit on how many requests of the source are in flight.
type Limit struct {
	Name   string // of its policy in the RateLimit headers
	Quota  int
	Window time.Duration
}

// Each is how long one use takes of the Window.
func (l Limit) Each() time.Duration { return l.Window / time.Duration(l.Quota) }

// Exceeded is the error of a request over the limit. source is who sends too much, such as "this address"; retryAfter
// is when the next one is within the limit.
func (l Limit) Exceeded(source string, retryAfter time.Duration) *Error {
	within := "within " + l.Window.String()
	if l.Window == 0 {
		within = "in flight"
	}
	err := New(RateLimited, "too many requests of %s: at most %d %s; wait as long as Retry-After says", source, l.Quota,
		within)
	err.Limit, err.RetryAfter = &l, max(retryAfter, time.Second)
	return err
}

// PerMinute is a limit of so many within a minute.
func PerMinute(name string, quota int) Limit {
	return Limit{Name: name, Quota: quota, Window: time.Minute}
}

// Suggestion returns what a wrong name should have been: the known name that is nearest, or all of them.
func Suggestion(name string, known []string) string {
	if near := Nearest(name, known); near != "" {
		return `did you mean "` + near + `"?`
	}
	return "expected one of " + strings.Join(known, ", ")
}

// Nearest returns the known name that takes the fewest edits, if they are at most a third of the name's length. ""
// means that no name is near.
func Nearest(name string, known []string) string {
	const longest = 64 // of a name: what takes longer to compare is no misspelling
	if len(name) > longest {
		return ""
	}
	best, fewest := "", max(1, len(name)/3)+1
	for _, other := range known {
		if n := edits(strings.ToLower(name), strings.ToLower(other)); n < fewest {
			best, fewest = other, n
		}
	}
	return best
}

// edits counts the insertions, deletions and replacements of bytes, and the exchanges of two neighbors, that make b of
// a (optimal string alignment).
func edits(a, b string) int {
	rows := make([][]int, len(a)+1) // rows[i][j] is for the first i bytes of a and the first j of b
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		for j := range rows[i] {
			switch {
			case i == 0 || j == 0:
				rows[i][j] = i + j
				continue
			case a[i-1] == b[j-1]:
				rows[i][j] = rows[i-1][j-1]
			default:
				rows[i][j] = 1 + min(rows[i-1][j-1], rows[i-1][j], rows[i][j-1])
			}
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
