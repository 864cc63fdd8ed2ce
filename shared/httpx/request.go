package httpx

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf16"
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

// readMedia gives a body that is declared as JSON and is UTF-8.
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

// scan finds what readers of a JSON value do not agree on, at any depth. For a key that an object has twice,
// encoding/json takes the last value and other readers take the first. A NUL in a text cannot be stored in Postgres.
// Half of a surrogate pair is replaced by encoding/json. The value must be valid JSON. A value that would take much
// more memory decoded than as text is an error.
func scan(data []byte) ([]apperr.Field, error) {
	s := scanner{data: data, left: maxValues}
	if s.value(); s.left < 0 {
		return nil, apperr.New(apperr.TooLarge, "the body has more than %d values, if each object counts as %d",
			maxValues, objectValues)
	}
	return s.faults, nil
}

// Decoded, a value takes some 50 bytes, and an object at least as much as objectValues of them: its map has room for
// so many. An order of 100 instances with all of Nova's tags and metadata has 20 800.
const (
	maxValues    = 25_000
	objectValues = 8
)

// scanner walks over valid JSON.
type scanner struct {
	data   []byte
	at     int
	path   []pathStep
	left   int      // how many values may follow; the scanner stops below 0
	keys   [][]byte // those of the objects around the scanner, the innermost last
	faults []apperr.Field
}

// report adds a fault of the value or key that path leads to. Beyond maxFaults they are only counted.
func (s *scanner) report(detail string) {
	var field string
	if len(s.faults) < maxFaults {
		field = text(fieldPath(s.path), maxQuote)
	}
	s.faults = append(s.faults, apperr.Field{Field: field, Detail: detail})
}

// pathStep is a key, or an index of a list.
type pathStep struct {
	key   []byte // nil for an index
	index int
}

// next is the next byte that is not between values, or 0 at the end; it is not consumed.
func (s *scanner) next() byte {
	if s.left < 0 {
		return 0
	}
	for ; s.at < len(s.data); s.at++ {
		switch s.data[s.at] {
		case ' ', '\t', '\r', '\n', ',', ':':
		default:
			return s.data[s.at]
		}
	}
	return 0
}

// value walks over one value.
func (s *scanner) value() {
	s.left--
	switch s.next() {
	case '{':
		s.left -= objectValues - 1
		s.object()
	case '[':
		s.list()
	case '"':
		s.checkText(s.text())
	default:
		s.literal()
	}
}

// manyKeys is from how many keys on an object's keys are looked up in a map: a loop over fewer is faster.
const manyKeys = 32

func (s *scanner) object() {
	s.at++
	first := len(s.keys)
	var many map[string]struct{}
	for s.next() == '"' {
		quoted := s.text()
		key := unquote(quoted)
		var isTwice bool
		s.path = append(s.path, pathStep{key: key})
		if len(s.keys)-first < manyKeys {
			isTwice = contains(s.keys[first:], key)
			s.keys = append(s.keys, key)
		} else {
			many = index(many, s.keys[first:])
			_, isTwice = many[string(key)]
			many[string(key)] = struct{}{}
		}
		if isTwice {
			s.report("is given twice: an object must have each key once")
		}
		s.checkText(quoted)
		s.value()
		s.path = s.path[:len(s.path)-1]
	}
	s.keys = s.keys[:first]
	s.at++
}

func contains(keys [][]byte, key []byte) bool {
	for _, k := range keys {
		if bytes.Equal(k, key) {
			return true
		}
	}
	return false
}

// index returns many, or a new map of the keys while many is nil.
func index(many map[string]struct{}, keys [][]byte) map[string]struct{} {
	if many != nil {
		return many
	}
	many = make(map[string]struct{}, 2*len(keys))
	for _, k := range keys {
		many[string(k)] = struct{}{}
	}
	return many
}

func (s *scanner) list() {
	s.at++
	for n := 0; s.left >= 0 && s.next() != ']'; n++ {
		s.path = append(s.path, pathStep{index: n})
		s.value()
		s.path = s.path[:len(s.path)-1]
	}
	s.at++
}

// literal walks over a number, true, false or null.
func (s *scanner) literal() {
	for ; s.at < len(s.data); s.at++ {
		switch c := s.data[s.at]; {
		case '0' <= c && c <= '9', 'a' <= c && c <= 'z', c == 'E', c == '+', c == '-', c == '.':
		default:
			return
		}
	}
}

// unquote is a string without its quotes and escapes.
func unquote(quoted []byte) []byte {
	if bytes.IndexByte(quoted, '\\') < 0 {
		return quoted[1 : len(quoted)-1]
	}
	var plain string
	_ = json.Unmarshal(quoted, &plain) // it is valid
	return []byte(plain)
}

// checkText reports escapes in a string, as it is written, that stand for no character that can be stored.
func (s *scanner) checkText(quoted []byte) {
	for at := 0; ; {
		next := bytes.IndexByte(quoted[at:], '\\')
		if next < 0 {
			return
		}
		if at += next; quoted[at+1] != 'u' {
			at += len(`\n`)
			continue
		}
		switch r := escaped(quoted[at:]); {
		case r == 0:
			s.report(`must not have the control character \u0000`)
			return
		case !utf16.IsSurrogate(r):
			at += len(`\u0000`)
		case utf16.DecodeRune(r, escaped(quoted[at+len(`\u0000`):])) == utf8.RuneError:
			s.report("must not have half of a surrogate pair")
			return
		default:
			at += len(`\u0000\u0000`)
		}
	}
}

// escaped is the character of an escape such as \u0041 at the begin of valid JSON, or an error character.
func escaped(from []byte) rune {
	if !bytes.HasPrefix(from, []byte(`\u`)) {
		return utf8.RuneError
	}
	r, _ := strconv.ParseUint(string(from[len(`\u`):len(`\u0000`)]), 16, 32) // it is valid
	return rune(r)
}

// text walks over a string, and gives it as it is written.
func (s *scanner) text() []byte {
	begin := s.at
	for s.at++; s.data[s.at] != '"'; s.at++ {
		if s.data[s.at] == '\\' {
			s.at++
		}
	}
	s.at++
	return s.data[begin:s.at]
}

// fieldPath is how errors name a field: instances[1].name.
func fieldPath(path []pathStep) string {
	var out strings.Builder
	for n, step := range path {
		switch {
		case step.key == nil:
			out.WriteString("[" + strconv.Itoa(step.index) + "]")
		case n > 0:
			out.WriteByte('.')
			fallthrough
		default:
			out.Write(step.key)
		}
	}
	return out.String()
}

// A body must come at bodyRate at least, and may fall behind by bodyGrace: a client that sends a byte now and then
// would occupy a request for as long as that may last.
const (
	bodyGrace = 10 * time.Second
	bodyRate  = 1 << 10 // bytes a second
)

// Upload is the body of a request that must have come by some time, at bodyRate at least.
//
// The deadline ends with the body. Afterwards net/http reads the connection to see whether the client hangs up, and a
// deadline that fails that read would cancel this request and every later one on the connection.
type Upload struct {
	io.ReadCloser
	control  *http.ResponseController
	deadline time.Time
	left     time.Duration // to wait for the client until its next byte
	isShort  bool          // left does not grow with what comes

	mu    sync.Mutex // a proxy may still read when the answer is under way
	whole bool       // all of it has been read
	ended bool       // the answer begins, and the connection is net/http's again
}

// ReadBy puts an Upload into the request.
func ReadBy(w http.ResponseWriter, r *http.Request, deadline time.Time) *Upload {
	u := &Upload{
		ReadCloser: r.Body, control: http.NewResponseController(w), deadline: deadline, left: bodyGrace,
	}
	if r.Body == nil || r.Body == http.NoBody {
		u.whole, deadline = true, time.Time{}
	} else {
		r.Body = u
	}
	_ = u.control.SetReadDeadline(deadline)
	return u
}

// Read implements io.Reader. Only the time that it waits counts: the reader may take its own.
func (u *Upload) Read(p []byte) (int, error) {
	began := time.Now()
	u.mu.Lock()
	if !u.ended && !u.whole {
		_ = u.control.SetReadDeadline(earlier(u.deadline, began.Add(u.left)))
	}
	u.mu.Unlock()
	n, err := u.ReadCloser.Read(p)
	if u.left -= time.Since(began); !u.isShort {
		u.left = min(bodyGrace, u.left+time.Duration(n)*time.Second/bodyRate)
	}
	if errors.Is(err, io.EOF) {
		u.mu.Lock()
		defer u.mu.Unlock()
		if u.whole = true; !u.ended {
			_ = u.control.SetReadDeadline(time.Time{})
		}
	}
	return n, err
}

// End is called before the answer. When the body has not been read, the answer closes the connection: otherwise
// net/http would keep it back to read the rest first, however slowly that comes.
func (u *Upload) End(answer http.Header) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.ended = true; !u.whole {
		answer.Set("Connection", "close")
	}
}

// linger is how long a client may take to notice the answer while it sends.
const linger = 500 * time.Millisecond

// Linger sends the answer, and takes in for a moment what still comes: the end of a connection with something unread
// may lose the answer. net/http does so itself, but not when another goroutine, as a proxy's, is reading the body.
func (u *Upload) Linger() {
	u.mu.Lock()
	whole := u.whole
	u.mu.Unlock()
	if !whole {
		_ = u.control.Flush()
		_ = u.control.SetReadDeadline(time.Now().Add(linger))
		_, _ = io.Copy(io.Discard, u.ReadCloser)
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
