package openstack

import (
	"bufio"
	"bytes"
	"io"
)

// storable is the body of an answer in JSON. It replaces each escaped NUL by the replacement character: OpenStack takes
// a NUL in names, descriptions and metadata, and Postgres cannot store it. encoding/json replaces all else that is not
// text. The length stays.
type storable struct {
	in  *bufio.Reader
	out []byte // was read and is to be given out
	io.Closer
}

func newStorable(body io.ReadCloser) *storable {
	return &storable{in: bufio.NewReader(body), Closer: body}
}

const (
	escapedNUL         = `\u0000`
	escapedReplacement = `\ufffd`
)

// Read implements io.Reader.
func (s *storable) Read(p []byte) (n int, err error) {
	for n < len(p) {
		if len(s.out) == 0 && n > 0 && s.in.Buffered() == 0 {
			return n, nil // do not wait for more
		}
		if len(s.out) == 0 {
			if s.out, err = s.next(); err != nil {
				return n, err
			}
		}
		more := copy(p[n:], s.out)
		n, s.out = n+more, s.out[more:]
	}
	return n, nil
}

// next takes what precedes the next backslash, or else the escape that begins with it. It is valid until the next call.
func (s *storable) next() ([]byte, error) {
	if _, err := s.in.Peek(1); err != nil {
		return nil, err
	}
	text, _ := s.in.Peek(s.in.Buffered())
	end := bytes.IndexByte(text, '\\')
	switch {
	case end < 0:
		end = len(text)
	case end == 0:
		text, _ = s.in.Peek(len(escapedNUL)) // less at the end of the body
		if string(text) == escapedNUL {
			text, end = []byte(escapedReplacement), len(escapedNUL)
		} else {
			end = min(len(text), len(`\\`))
		}
	}
	_, err := s.in.Discard(end)
	return text[:end], err
}
