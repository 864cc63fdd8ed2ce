package httpx

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// checkKeys refuses a JSON value in which an object, at any depth, has the same key twice: encoding/json takes the last
// one, other readers take the first. The value must be valid JSON, as one that was decoded is.
func checkKeys(data []byte) error {
	s := keyScanner{data: data}
	if s.value(); !s.found {
		return nil
	}
	return apperr.InvalidField(text(fieldPath(s.path), maxQuote), "is given twice: an object must have each key once")
}

// keyScanner walks over valid JSON.
type keyScanner struct {
	data  []byte
	at    int
	path  []pathStep
	keys  [][]byte // those of the objects around the scanner, the innermost last
	found bool     // path is the first key that comes twice
}

// pathStep is a key, or an index of a list.
type pathStep struct {
	key   []byte // nil for an index
	index int
}

// next is the next byte that is not between values, or 0 at the end; it is not consumed.
func (s *keyScanner) next() byte {
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
func (s *keyScanner) value() {
	switch s.next() {
	case '{':
		s.object()
	case '[':
		s.list()
	case '"':
		s.text()
	default:
		s.literal()
	}
}

// manyKeys is from how many keys on an object's keys are looked up in a map: a loop over fewer is faster.
const manyKeys = 32

func (s *keyScanner) object() {
	s.at++
	first := len(s.keys)
	var many map[string]struct{}
	for s.next() == '"' {
		key := s.key()
		s.path = append(s.path, pathStep{key: key})
		if len(s.keys)-first < manyKeys {
			s.found = contains(s.keys[first:], key)
			s.keys = append(s.keys, key)
		} else {
			many = index(many, s.keys[first:])
			_, s.found = many[string(key)]
			many[string(key)] = struct{}{}
		}
		if s.found {
			return
		}
		if s.value(); s.found {
			return
		}
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

func (s *keyScanner) list() {
	s.at++
	for n := 0; s.next() != ']'; n++ {
		s.path = append(s.path, pathStep{index: n})
		if s.value(); s.found {
			return
		}
		s.path = s.path[:len(s.path)-1]
	}
	s.at++
}

// literal walks over a number, true, false or null.
func (s *keyScanner) literal() {
	for ; s.at < len(s.data); s.at++ {
		switch c := s.data[s.at]; {
		case '0' <= c && c <= '9', 'a' <= c && c <= 'z', c == 'E', c == '+', c == '-', c == '.':
		default:
			return
		}
	}
}

// key walks over a string, and gives it without its escapes.
func (s *keyScanner) key() []byte {
	quoted := s.text()
	if bytes.IndexByte(quoted, '\\') < 0 {
		return quoted[1 : len(quoted)-1]
	}
	var plain string
	_ = json.Unmarshal(quoted, &plain) // it is valid
	return []byte(plain)
}

// text walks over a string, and gives it as it is written.
func (s *keyScanner) text() []byte {
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
