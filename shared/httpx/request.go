package httpx

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"os"
	"slices"
	"unicode/utf8"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// MaxBody is the largest request body: user_data of 64 KiB for a few instances fits many times. Of an operation that
// checks credentials of its own the body is read before they are, so anyone may send it: maxAnonymousBody fits a token
// of 8 KiB, and must arrive within bodyGrace.
const (
	MaxBody          = 1 << 20
	maxAnonymousBody = 16 << 10
)

// limitBody bounds the body of the request, and the time in which it must come.
func (x *exchange) limitBody(w http.ResponseWriter, upload *Upload) {
	most := int64(MaxBody)
	if x.route != nil && x.route.isAnonymous {
		most, upload.isShort = maxAnonymousBody, true
	}
	x.request.Body = http.MaxBytesReader(w, x.request.Body, most)
}

// readMedia gives a body that says that it is JSON, and is UTF-8.
func readMedia(r *http.Request) ([]byte, error) {
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind != jsonType {
		return nil, apperr.New(apperr.UnsupportedMedia, "the body must be application/json")
	}
	data, err := Bytes(r)
	if err == nil && !utf8.Valid(data) {
		err = apperr.New(apperr.Invalid, "the body is not UTF-8")
	}
	return data, err
}

// Bytes reads the request's body as it is.
func Bytes(r *http.Request) ([]byte, error) {
	data, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, readError(err)
	}
	return data, nil
}

func readError(err error) error {
	if large, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return apperr.New(apperr.TooLarge, "the body is larger than %d bytes", large.Limit)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return apperr.Wrap(apperr.Invalid, err, "the body came too slowly: send at least %d bytes a second, and "+
			"without X-Auth-Token all of it within %s", bodyRate, bodyGrace)
	}
	return apperr.Wrap(apperr.Invalid, err, "the body could not be read")
}

// maxQuote bounds what of a request is repeated in its refusal, and so in the log.
const maxQuote = 100

func syntaxError(err error) error {
	if errors.Is(err, io.EOF) {
		return apperr.New(apperr.Invalid, "the body is empty")
	}
	return apperr.Wrap(apperr.Invalid, err, "the body is not valid JSON: %s", err)
}

// NoQuery rejects a request that has query parameters.
func NoQuery(r *http.Request) error {
	if _, faults := parseQuery(r, nil); len(faults) > 0 {
		return invalid(faults)
	}
	return nil
}

// parseQuery gives the parameters of a request that takes those of names, each at most once, and what is wrong with
// them.
func parseQuery(r *http.Request, names []string) (url.Values, []apperr.Field) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, []apperr.Field{{Detail: "the query is malformed"}}
	}
	var faults []apperr.Field
	for name, list := range values {
		fault := apperr.Field{Field: text(name, maxQuote)}
		switch {
		case !slices.Contains(names, name):
			fault.Detail, fault.Allowed = "is not a parameter of this request", names
		case len(list) > 1:
			fault.Detail = "was given more than once"
		case list[0] == "":
			fault.Detail = "is empty: leave it out instead"
		case !isText(list[0]):
			fault.Detail = "is not text"
		default:
			continue
		}
		faults = append(faults, fault)
	}
	return values, faults
}

// next is the URL of the next page: the same request with another marker.
func next(u url.URL, marker string) *string {
	query := u.Query()
	query.Set("marker", marker)
	next := u.Path + "?" + query.Encode()
	return &next
}
