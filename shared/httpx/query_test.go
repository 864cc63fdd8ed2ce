package httpx

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func with(query string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/v1/things", nil)
	r.URL.RawQuery = query
	return r
}

func TestParseQuery(t *testing.T) {
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
			if _, faults := parseQuery(with(tc.query), []string{"limit", "name"}); len(faults) != 1 ||
				faults[0].Field != tc.field {
				t.Errorf("got %+v", faults)
			}
		})
	}
	values, faults := parseQuery(with("name=a%20%2B+b&limit=5"), []string{"limit", "name", "marker"})
	if len(faults) != 0 || values.Get("name") != "a + b" || values.Get("marker") != "" {
		t.Errorf("got %+v %v", values, faults)
	}
}

func TestNextKeepsTheQuery(t *testing.T) {
	t.Parallel()
	next := *next(*with("limit=5&name=a%26b&marker=old").URL, "new/+")
	u, err := url.Parse(next)
	if err != nil || u.Path != "/v1/things" || u.Host != "" {
		t.Fatalf("got %s", next)
	}
	if q := u.Query(); q.Get("limit") != "5" || q.Get("name") != "a&b" || len(q["marker"]) != 1 ||
		q.Get("marker") != "new/+" {
		t.Errorf("got %s", next)
	}
}

// TestTextIsFitForARow holds for every text: Postgres takes it, and it is a prefix of what was sent.
func TestTextIsFitForARow(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"": "", "abc": "abc", "abcdefgh": "abcdef", "a\x00b": "a\uFFFDb", "\xff\xfe": "\uFFFD", "ab✓✓": "ab✓",
		"abcde✓": "abcde",
	} {
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
		if utf8.ValidString(in) && !strings.ContainsRune(in, 0) &&
			(!strings.HasPrefix(in, got) || len(in) <= most && got != in || len(got) < min(len(in), most-3)) {
			t.Errorf("got %q", got)
		}
	})
}
