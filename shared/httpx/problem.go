package httpx

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/validation"

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
	apperr.ClientGone:       499, // nginx's; no one is there to read it, but the request log shows it
	apperr.Internal:         http.StatusInternalServerError,
	apperr.Unsupported:      http.StatusNotImplemented,
	apperr.BadGateway:       http.StatusBadGateway,
	apperr.Unavailable:      http.StatusServiceUnavailable,
	apperr.Timeout:          http.StatusGatewayTimeout,
}

// ProblemType is the content type of every error answer (RFC 9457).
const ProblemType = "application/problem+json"

// Problem is the body of every error answer, and of each part of an answer that failed on its own.
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
	_ = failure(err, id, "").write(r.Context(), w, r.Method == http.MethodHead)
}

func seconds(d time.Duration) string { return strconv.Itoa(int(math.Ceil(d.Seconds()))) }

// settings makes huma as strict as the API promises, and has its errors be ours.
var settings = sync.OnceFunc(func() {
	huma.ValidateStrictCasing = true
	huma.DefaultArrayNullable = false
	huma.NewErrorWithContext = func(ctx huma.Context, status int, msg string, errs ...error) huma.StatusError {
		c := of(ctx.Context())
		c.err = c.outcome(status, msg, errs)
		return dropped{}
	}
	// Some of huma's texts end with a parser's error, which repeats the value. These have no place for it.
	//nolint:reassign // huma is set up so
	huma.ErrorFormatter = func(format string, args ...any) string {
		if !strings.Contains(format, "%") {
			return format
		}
		return fmt.Sprintf(format, args...)
	}
	setTexts()
})

const (
	mustBeOneOf = "must be one of "
	isMissing   = " is missing"
)

func setTexts() {
	validation.MsgUnexpectedProperty = "is not a field of this request"
	validation.MsgExpectedRequiredProperty = "%s" + isMissing
	validation.MsgExpectedBoolean = "must be true or false"
	validation.MsgExpectedNumber = "must be a number"
	validation.MsgExpectedInteger = "must be a whole number"
	validation.MsgExpectedString = "must be a string"
	validation.MsgExpectedArray = "must be a list"
	validation.MsgExpectedObject = "must be an object"
	validation.MsgExpectedOneOf = mustBeOneOf + "%s"
	validation.MsgExpectedMinimumNumber = "must be %v or more"
	validation.MsgExpectedMaximumNumber = "must be %v or less"
	validation.MsgExpectedMinLength = "must have %d characters or more"
	validation.MsgExpectedMaxLength = "must have %d characters or fewer"
	validation.MsgExpectedBePattern = "must be %s"
	validation.MsgExpectedMatchPattern = "must match %s"
	validation.MsgExpectedMinItems = "must have %d entries or more"
	validation.MsgExpectedMaxItems = "must have %d entries or fewer"
	validation.MsgExpectedMinProperties = "must have %d fields or more"
	validation.MsgExpectedMaxProperties = "must have %d fields or fewer"
	validation.MsgExpectedArrayItemsUnique = "has an entry twice"
	validation.MsgExpectedRFC4122UUID = "must be a UUID"
	validation.MsgExpectedRFC3986URI = "must be a URL"
	validation.MsgExpectedRFC3339DateTime = "must be a time such as 2026-01-02T03:04:05Z"
	validation.MsgExpectedRFC5322Email = "must be an e-mail address"
	validation.MsgExpectedDuration = "must be a duration such as 90m"
	validation.MsgExpectedRegexp = "must be a regular expression"
}

// dropped is what huma makes of an error, which no one sees.
type dropped struct{}

// Error implements huma.StatusError.
func (dropped) Error() string { return "" }

// GetStatus implements huma.StatusError.
func (dropped) GetStatus() int { return http.StatusBadRequest }

// outcome is the error that the caller gets for one of huma's. A handler's own error comes with status 500.
func (c *call) outcome(status int, msg string, errs []error) error {
	if status == http.StatusInternalServerError && len(errs) > 0 {
		return errs[0]
	}
	if err := c.rejected(errs); err != nil {
		return err
	}
	return apperr.New(apperr.Invalid, "the body is missing: %s", msg)
}

// rejected is why the request is not served, with what huma found wrong with it; nil if all is well. An id in the path
// that is not a UUID goes first, then a body that could not be read.
func (c *call) rejected(errs []error) error {
	faults, isRead := c.faults, c.unread == nil
	for _, err := range errs {
		d, ok := errors.AsType[*huma.ErrorDetail](err)
		if ok && strings.HasPrefix(d.Location, "path.") {
			return apperr.New(apperr.NotFound, "%s in the path is not a UUID", strings.TrimPrefix(d.Location, "path."))
		}
		found := fieldsOf(err)
		switch {
		case !ok && !isRead, ok && d.Location == "body" && c.unread != nil:
			continue // it says nothing that the fault of the body does not
		case !ok: // a type's own check, which did not see what huma has rejected
			found = slices.DeleteFunc(slices.Clone(found), func(f apperr.Field) bool {
				return hasFault(faults, f.Field)
			})
		case d.Location == "body" && d.Message == validation.MsgExpectedObject:
			isRead = false
		}
		faults = append(faults, found...)
	}
	switch {
	case c.unread != nil && apperr.CodeOf(c.unread) != apperr.Invalid:
		return c.unread
	case c.unread != nil:
		faults = append(faults, apperr.Field{Detail: apperr.As(c.unread).Message})
	case len(faults) == 0:
		return nil
	}
	return invalid(faults)
}

func hasFault(faults []apperr.Field, field string) bool {
	return field != "" && slices.ContainsFunc(faults, func(f apperr.Field) bool { return f.Field == field })
}

// fieldsOf are the faults that an error of huma, or of a type's own check, stands for. The values stay out of it: they
// may be secrets.
func fieldsOf(err error) []apperr.Field {
	d, ok := errors.AsType[*huma.ErrorDetail](err)
	if !ok {
		own := apperr.As(err)
		if len(own.Fields) == 0 {
			return []apperr.Field{{Detail: own.Message}}
		}
		return own.Fields
	}
	_, field, _ := strings.Cut(unmarked.Replace(d.Location), ".")
	if d.Message == "required query parameter is missing" {
		return []apperr.Field{{Field: field, Detail: "is missing"}}
	}
	if name, missing := strings.CutSuffix(d.Message, isMissing); missing {
		return []apperr.Field{{Field: strings.TrimPrefix(field+"."+name, "."), Detail: "is missing"}}
	}
	if field == "" {
		return []apperr.Field{{Detail: "the body " + d.Message}}
	}
	fault := apperr.Field{Field: text(field, maxQuote), Detail: strings.TrimPrefix(d.Message, "invalid value: ")}
	switch allowed, isEnum := strings.CutPrefix(d.Message, mustBeOneOf); {
	case isEnum:
		fault.Allowed = strings.Split(allowed, ", ")
	case d.Message == "invalid integer":
		fault.Detail = validation.MsgExpectedInteger
	case d.Message == "invalid boolean":
		fault.Detail = validation.MsgExpectedBoolean
	}
	return []apperr.Field{fault}
}

// maxFaults bounds an answer: a body of 1 MiB can have very many faults.
const maxFaults = 20

// invalid names all the faults. Those without a field are about the request as a whole.
func invalid(faults []apperr.Field) error {
	slices.SortStableFunc(faults, func(a, b apperr.Field) int { return cmp.Compare(a.Field, b.Field) })
	faults = slices.CompactFunc(faults, func(a, b apperr.Field) bool {
		return a.Field == b.Field && a.Detail == b.Detail
	})
	err := &apperr.Error{Code: apperr.Invalid}
	var texts []string
	for _, f := range faults[:min(len(faults), maxFaults)] {
		if f.Field == "" {
			texts = append(texts, f.Detail)
			continue
		}
		texts, err.Fields = append(texts, f.Field+": "+f.Detail), append(err.Fields, f)
	}
	if more := len(faults) - maxFaults; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d faults more", more))
	}
	err.Message = strings.Join(texts, "; ")
	return err
}

// Schemas are the schemas of types that are checked by Check, and not as a whole body.
func Schemas() huma.Registry {
	settings()
	return huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer)
}

// Check finds what of a decoded JSON value of a field does not fit a schema of the registry, as for a body.
func Check(registry huma.Registry, schema *huma.Schema, field string, value any) (faults []apperr.Field) {
	at, found := huma.NewPathBuffer([]byte{}, 0), huma.ValidateResult{}
	at.Push("body")
	at.Push(field)
	markKeys(value)
	huma.Validate(registry, schema, at, huma.ModeWriteToServer, value, &found)
	for _, err := range found.Errors {
		for _, fault := range fieldsOf(err) {
			if fault.Detail == validation.MsgUnexpectedProperty {
				name, known := fieldsBeside(registry, schema, strings.TrimPrefix(fault.Field, field+"."))
				fault.Detail, fault.Allowed = fault.Detail+"; "+apperr.Suggestion(name, known), known
			}
			faults = append(faults, fault)
		}
	}
	return faults
}

// fieldsBeside are the fields that the object of a path has in a schema, and the last name of the path.
func fieldsBeside(registry huma.Registry, schema *huma.Schema, path string) (name string, known []string) {
	for {
		for schema != nil && schema.Ref != "" {
			schema = registry.SchemaFromRef(schema.Ref)
		}
		if schema == nil {
			return path, nil
		}
		first, rest, isDeeper := strings.Cut(path, ".")
		if !isDeeper {
			return path, slices.Sorted(maps.Keys(schema.Properties))
		}
		first, _, isEntry := strings.Cut(first, "[")
		path, schema = rest, schema.Properties[first]
		if isEntry && schema != nil {
			schema = schema.Items
		}
	}
}

// Invalid is the error of all faults together.
func Invalid(faults ...apperr.Field) error { return invalid(slices.Clone(faults)) }
