package httpx

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

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
