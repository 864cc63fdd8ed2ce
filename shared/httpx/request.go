package httpx

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// MaxBody is the largest request body: user_data of 64 KiB for a few instances fits many times.
const MaxBody = 1 << 20

// Body reads the request's JSON into T, strictly: unknown and repeated fields, wrong types and trailing data are refused
// with the field's name.
func Body[T any](r *http.Request) (in T, err error) {
	data, err := readMedia(r)
	if err != nil {
		return in, err
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&in); err != nil {
		return in, decodeError(err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return in, apperr.New(apperr.Invalid, "the body has more after its JSON value")
	}
	return in, checkKeys(data)
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
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return apperr.New(apperr.TooLarge, "the body is larger than %d bytes", MaxBody)
	}
	return apperr.Wrap(apperr.Invalid, err, "the body could not be read")
}

// maxQuote bounds what of a request is repeated in its refusal, and so in the log.
const maxQuote = 100

func decodeError(err error) error {
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		if e.Field == "" {
			return apperr.Wrap(apperr.Invalid, err, "the body must be a JSON object, not %s", e.Value)
		}
		return apperr.InvalidField(e.Field, fmt.Sprintf("must be %s, not %s", kindName(e.Type.Kind().String()), text(e.Value, maxQuote)))
	}
	if e, ok := errors.AsType[*apperr.Error](err); ok {
		return e // from a type's own UnmarshalJSON
	}
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		name, _ = strconv.Unquote(name)
		return apperr.InvalidField(text(name, maxQuote), "is not a field of this request")
	}
	if errors.Is(err, io.EOF) {
		return apperr.New(apperr.Invalid, "the body is empty")
	}
	if _, ok := errors.AsType[*json.SyntaxError](err); ok || errors.Is(err, io.ErrUnexpectedEOF) {
		return apperr.Wrap(apperr.Invalid, err, "the body is not valid JSON: %s", err)
	}
	return apperr.New(apperr.Invalid, "the body is not valid: %s", text(err.Error(), maxQuote))
}

func kindName(kind string) string {
	switch {
	case strings.HasPrefix(kind, "int") || strings.HasPrefix(kind, "uint"):
		return "a whole number"
	case strings.HasPrefix(kind, "float"):
		return "a number"
	case kind == "slice":
		return "a list"
	case kind == "map" || kind == "struct":
		return "an object"
	case kind == "bool":
		return "true or false"
	}
	return "a " + kind
}

// Query is the request's query, of which only the named parameters are taken, each at most once.
type Query struct{ values url.Values }

// ReadQuery refuses every parameter that is not named, and repeated and empty ones.
func ReadQuery(r *http.Request, names ...string) (Query, error) {
	values, faults := parseQuery(r, names)
	if len(faults) > 0 {
		return Query{}, invalid(faults)
	}
	return Query{values}, nil
}

// parseQuery gives the parameters of a request that takes those of names, each at most once, and what is wrong with them.
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
		case !utf8.ValidString(list[0]) || strings.ContainsRune(list[0], 0):
			fault.Detail = "is not text"
		default:
			continue
		}
		faults = append(faults, fault)
	}
	return values, faults
}

// Text is a parameter as it is; "" when it is absent.
func (q Query) Text(name string) string { return q.values.Get(name) }

// Int is a whole number within bounds.
func (q Query) Int(name string, byDefault, least, most int) (int, error) {
	given := q.values.Get(name)
	if given == "" {
		return byDefault, nil
	}
	n, err := strconv.Atoi(given)
	if err != nil || n < least || n > most {
		return 0, apperr.Malformed(name, fmt.Sprintf("a whole number from %d to %d", least, most), given)
	}
	return n, nil
}

// Bool is true or false; given says whether the parameter was there.
func (q Query) Bool(name string) (value, given bool, err error) {
	switch q.values.Get(name) {
	case "":
		return false, false, nil
	case "true":
		return true, true, nil
	case "false":
		return false, true, nil
	}
	return false, true, apperr.Malformed(name, "true or false", q.values.Get(name), "true", "false")
}

// OneOf is one of the allowed values; "" when it is absent.
func (q Query) OneOf(name string, allowed ...string) (string, error) {
	text := q.values.Get(name)
	if text == "" || slices.Contains(allowed, text) {
		return text, nil
	}
	return "", apperr.Unknown(name, "value", text, allowed...)
}

// Next is the URL of the next page: the same request with another marker.
func Next(r *http.Request, marker string) *string { return next(*r.URL, marker) }

func next(u url.URL, marker string) *string {
	query := u.Query()
	query.Set("marker", marker)
	next := u.Path + "?" + query.Encode()
	return &next
}

// MaxLimit is the largest page.
const MaxLimit = 1000
