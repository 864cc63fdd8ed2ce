package httpx

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

func with(query string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/v1/things", nil)
	r.URL.RawQuery = query
	return r
}

func TestReadQuery(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ query, field string }{
		"an unknown one":  {"limit=1&limt=2", "limt"},
		"in another case": {"Limit=1", "Limit"},
		"twice":           {"limit=1&limit=1", "limit"},
		"empty":           {"limit=", "limit"},
		"without a value": {"limit", "limit"},
		"no text":         {"name=%ff", "name"},
		"a NUL":           {"name=a%00", "name"},
		"bad percents":    {"name=%zz", ""},
		"a semicolon":     {"name=a;limit=1", ""},
		"a very long one": {strings.Repeat("x", 50_000) + "=1", strings.Repeat("x", maxQuote)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := ReadQuery(with(tc.query), "limit", "name")
			e := apperr.As(err)
			if e.Code != apperr.Invalid || (tc.field == "") != (len(e.Fields) == 0) || tc.field != "" && e.Fields[0].Field != tc.field {
				t.Errorf("got %v %+v", err, e.Fields)
			}
		})
	}
	q, err := ReadQuery(with("name=a%20%2B+b&limit=5"), "limit", "name", "marker")
	if err != nil || q.Text("name") != "a + b" || q.Text("marker") != "" {
		t.Errorf("got %+v %v", q, err)
	}
}

func TestQueryValues(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{"": 20, "1": 1, "1000": 1000, "0": -1, "1001": -1, "-1": -1, "1.5": -1, "1e2": -1, "0x10": -1, " 1": -1, "99999999999999999999": -1} {
		n, err := Query{url.Values{"limit": {text}}}.Int("limit", 20, 1, MaxLimit)
		if want >= 0 && (err != nil || n != want) || want < 0 && apperr.CodeOf(err) != apperr.Invalid {
			t.Errorf("limit=%s: got %d, %v", text, n, err)
		}
	}
	for text, want := range map[string][3]bool{"": {false, false, true}, "true": {true, true, true}, "false": {false, true, true}, "1": {false, true, false}, "TRUE": {false, true, false}} {
		value, given, err := Query{url.Values{"dry_run": {text}}}.Bool("dry_run")
		if got := [3]bool{value, given, err == nil}; got != want {
			t.Errorf("dry_run=%s: got %v, want %v", text, got, want)
		}
	}
	for text, good := range map[string]bool{"": true, "a": true, "b": true, "c": false, "A": false, "a,b": false} {
		got, err := Query{url.Values{"kind": {text}}}.OneOf("kind", "a", "b")
		if good != (err == nil) || good && got != text || !good && len(apperr.As(err).Fields[0].Allowed) != 2 {
			t.Errorf("kind=%s: got %q, %v", text, got, err)
		}
	}
}

func TestNextKeepsTheQuery(t *testing.T) {
	t.Parallel()
	next := *Next(with("limit=5&name=a%26b&marker=old"), "new/+")
	u, err := url.Parse(next)
	if err != nil || u.Path != "/v1/things" || u.Host != "" {
		t.Fatalf("got %s", next)
	}
	if q := u.Query(); q.Get("limit") != "5" || q.Get("name") != "a&b" || len(q["marker"]) != 1 || q.Get("marker") != "new/+" {
		t.Errorf("got %s", next)
	}
}

// TestTextIsFitForARow holds for every text: Postgres takes it, and it is a prefix of what was sent.
func TestTextIsFitForARow(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"": "", "abc": "abc", "abcdefgh": "abcdef", "a\x00b": "a\uFFFDb", "\xff\xfe": "\uFFFD", "ab✓✓": "ab✓", "abcde✓": "abcde"} {
		if got := text(in, 6); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		in := string(rapid.SliceOf(rapid.Byte()).Draw(t, "in"))
		most := rapid.IntRange(0, 20).Draw(t, "most")
		got := text(in, most)
		if len(got) > most || !utf8.ValidString(got) || strings.ContainsRune(got, 0) {
			t.Errorf("got %q", got)
		}
		if utf8.ValidString(in) && !strings.ContainsRune(in, 0) && (!strings.HasPrefix(in, got) || len(in) <= most && got != in || len(got) < min(len(in), most-3)) {
			t.Errorf("got %q", got)
		}
	})
}

func TestRemote(t *testing.T) {
	t.Parallel()
	for addr, want := range map[string]string{"192.0.2.1:5000": "192.0.2.1", "[2001:db8::1]:5000": "2001:db8::1", "@": "@", "": ""} {
		r := with("")
		r.RemoteAddr = addr
		r.Header.Set("X-Forwarded-For", "6.6.6.6")
		r.Header.Set("Forwarded", "for=6.6.6.6")
		if got := remote(r); got != want {
			t.Errorf("%q: got %q", addr, got)
		}
	}
}
