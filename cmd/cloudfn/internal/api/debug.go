package api

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"
)

const redacted = "[redacted]"

// secretHeaders and secretFields are never shown.
var (
	secretHeaders = []string{"X-Auth-Token", "X-Subject-Token", "Authorization", "Cookie", "Set-Cookie"}
	secretFields  = []string{
		"secret", "password", "passcode", "token", "join_token", "private_key", "user_data", "user_data_base64",
		"payload", "env",
	}
)

// Debug gets requests and answers, a line at a time and without secrets.
type Debug func(format string, args ...any)

// Wrap gives a transport that shows each request and its answer; a nil Debug changes nothing.
func (d Debug) Wrap(next http.RoundTripper) http.RoundTripper {
	if d == nil {
		return next
	}
	return debugged{d, next}
}

type debugged struct {
	show Debug
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t debugged) RoundTrip(req *http.Request) (*http.Response, error) {
	t.show("> %s %s", req.Method, req.URL.Redacted())
	t.header(">", req.Header)
	t.body(">", sent(req))
	began := time.Now()
	resp, err := t.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	_ = resp.Body.Close()
	if err != nil {
		return nil, err
	}
	resp.Body = io.NopCloser(bytes.NewReader(text))
	t.show("< %s in %s", resp.Status, time.Since(began).Round(100*time.Microsecond))
	t.header("<", resp.Header)
	t.body("<", text)
	return resp, nil
}

// sent is a copy of a request's body.
func sent(req *http.Request) []byte {
	if req.GetBody == nil {
		return nil
	}
	body, err := req.GetBody()
	if err != nil {
		return nil
	}
	defer func() { _ = body.Close() }()
	text, _ := io.ReadAll(body)
	return text
}

func (t debugged) header(side string, h http.Header) {
	for _, name := range slices.Sorted(maps.Keys(h)) {
		value := strings.Join(h[name], ", ")
		if slices.Contains(secretHeaders, name) {
			value = redacted
		}
		t.show("%s %s: %s", side, name, value)
	}
}

// body shows JSON without its secrets. Of any other body it shows the size.
func (t debugged) body(side string, body []byte) {
	if len(body) == 0 {
		return
	}
	var value any
	if json.Unmarshal(body, &value) != nil {
		t.show("%s (%d bytes)", side, len(body))
		return
	}
	shown, err := json.Marshal(hide(value))
	if err == nil {
		t.show("%s %s", side, shown)
	}
}

func hide(value any) any {
	switch value := value.(type) {
	case map[string]any:
		for name, inner := range value {
			if slices.Contains(secretFields, name) && inner != nil {
				value[name] = redacted
				continue
			}
			value[name] = hide(inner)
		}
	case []any:
		for i, inner := range value {
			value[i] = hide(inner)
		}
	case string: // the query of a URL may have a token: a console's has one, and a callback's may
		if at, query, isURL := strings.Cut(value, "?"); isURL && query != "" && strings.Contains(at, "://") {
			return at + "?" + redacted
		}
	}
	return value
}
