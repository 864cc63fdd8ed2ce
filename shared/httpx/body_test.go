package httpx

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// thing is a request with a field of each kind.
type thing struct {
	Name   string            `json:"name"`
	Count  int               `json:"count"`
	Small  uint8             `json:"small"`
	Ratio  float64           `json:"ratio"`
	Start  *bool             `json:"start"`
	List   []string          `json:"list"`
	Labels map[string]string `json:"labels"`
	Key    domain.Secret     `json:"key"`
	Even   even              `json:"even"`
	Inner  []part            `json:"inner"`
}

type part struct {
	ID   string `json:"id"`
	Size int    `json:"size"`
}

// numbered are so many labels.
func numbered(n int) string {
	labels := make([]string, n)
	for i := range labels {
		labels[i] = fmt.Sprintf("%q:\"x\"", strconv.Itoa(i))
	}
	return strings.Join(labels, ",")
}

func inner(ids ...string) (parts []part) {
	for _, id := range ids {
		parts = append(parts, part{ID: id})
	}
	return parts
}

// even has a mind of its own about what is right.
type even int

// UnmarshalJSON refuses odd numbers.
func (e *even) UnmarshalJSON(data []byte) error {
	var n int
	if err := json.Unmarshal(data, &n); err != nil {
		return err
	}
	if n%2 != 0 {
		return apperr.InvalidField("even", "is odd")
	}
	*e = even(n)
	return nil
}

func post(body string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/x", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Body = http.MaxBytesReader(nil, r.Body, MaxBody)
	return r
}

func TestBodyTaken(t *testing.T) {
	t.Parallel()
	yes := true
	for name, tc := range map[string]struct {
		body string
		want thing
	}{
		"empty object":       {`{}`, thing{}},
		"white space around": {" \r\n\t{\"name\":\"a\"}\n ", thing{Name: "a"}},
		"all":                {`{"name":"é✓","count":-3,"small":255,"ratio":1e3,"start":true,"list":["a"],"labels":{"k":"v"},"key":"s","even":2}`, thing{"é✓", -3, 255, 1000, &yes, []string{"a"}, map[string]string{"k": "v"}, "s", 2, nil}},
		"nulls":              {`{"name":null,"start":null,"list":null}`, thing{}},
		"equal keys apart":   {`{"name":"a","labels":{"name":"a","k":"{\"k\":"},"inner":[{"id":"a"},{"id":"a"}]}`, thing{Name: "a", Labels: map[string]string{"name": "a", "k": `{"k":`}, Inner: inner("a", "a")}},
		"labels in capitals": {`{"labels":{"a":"1","A":"2"}}`, thing{Labels: map[string]string{"a": "1", "A": "2"}}},
		"escapes":            {`{"name":"\u0041\ud83d\ude00"}`, thing{Name: "A😀"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := Body[thing](post(tc.body))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestBodyRefused(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("[", 100_000)
	long := strings.Repeat("9", MaxBody/2)
	for name, tc := range map[string]struct {
		body   string
		code   apperr.Code
		field  string
		detail string
	}{
		"empty":                   {"", apperr.Invalid, "", "the body is empty"},
		"white space":             {"  \n", apperr.Invalid, "", "the body is empty"},
		"cut off":                 {`{"name":`, apperr.Invalid, "", "not valid JSON"},
		"no JSON":                 {`name=a`, apperr.Invalid, "", "not valid JSON"},
		"a byte order mark":       {"\ufeff{}", apperr.Invalid, "", "not valid JSON"},
		"a list":                  {`[]`, apperr.Invalid, "", "must be a JSON object, not array"},
		"a text":                  {`"x"`, apperr.Invalid, "", "must be a JSON object, not string"},
		"two objects":             {`{}{}`, apperr.Invalid, "", "has more after"},
		"garbage behind":          {`{} x`, apperr.Invalid, "", "has more after"},
		"an unknown field":        {`{"nam":"a"}`, apperr.Invalid, "nam", "is not a field of this request"},
		"an unknown inner field":  {`{"inner":[{"di":"a"}]}`, apperr.Invalid, "di", "is not a field of this request"},
		"an unknown odd field":    {`{"a\"\u0000b":1}`, apperr.Invalid, "a\"\uFFFDb", "is not a field of this request"},
		"a number for a text":     {`{"name":1}`, apperr.Invalid, "name", "must be a string, not number"},
		"a text for a number":     {`{"count":"1"}`, apperr.Invalid, "count", "must be a whole number, not string"},
		"a fraction":              {`{"count":1.5}`, apperr.Invalid, "count", "must be a whole number, not number 1.5"},
		"too large a number":      {`{"small":256}`, apperr.Invalid, "small", "must be a whole number"},
		"out of every range":      {`{"ratio":1e400}`, apperr.Invalid, "ratio", "must be a number, not number 1e400"},
		"a very long number":      {`{"count":` + long + `}`, apperr.Invalid, "count", "must be a whole number"},
		"a very long field":       {`{"` + long + `":1}`, apperr.Invalid, long[:10], "is not a field of this request"},
		"a text for a bool":       {`{"start":"true"}`, apperr.Invalid, "start", "must be true or false, not string"},
		"a text for a list":       {`{"list":"a"}`, apperr.Invalid, "list", "must be a list, not string"},
		"a list for an object":    {`{"labels":[]}`, apperr.Invalid, "labels", "must be an object, not array"},
		"an inner field":          {`{"inner":[{"id":"a"},{"size":"b"}]}`, apperr.Invalid, "inner.size", "must be a whole number, not string"},
		"a number for a secret":   {`{"key":5}`, apperr.Invalid, "key", "must be a string"},
		"a key twice":             {`{"name":"a","count":1,"name":"a"}`, apperr.Invalid, "name", "name: is given twice"},
		"a key twice, escaped":    {"{ \"name\" : \"a\" ,\n\"n\\u0061me\" : \"b\" }", apperr.Invalid, "name", "name: is given twice"},
		"a label twice":           {`{"count":1,"labels":{"a":"1","b":"\"a\"","a":"2"},"start":true}`, apperr.Invalid, "labels.a", "labels.a: is given twice"},
		"an inner key twice":      {`{"list":["x","x"],"inner":[{"id":"a"},{"id":"b","size":-1,"id":"c"}]}`, apperr.Invalid, "inner[1].id", "inner[1].id: is given twice"},
		"an object twice":         {`{"labels":{},"labels":{}}`, apperr.Invalid, "labels", "labels: is given twice"},
		"one of many labels":      {`{"labels":{` + numbered(100) + `,"40":"x"}}`, apperr.Invalid, "labels.40", "labels.40: is given twice"},
		"one of few labels":       {`{"labels":{` + numbered(100) + `,"4":"x"}}`, apperr.Invalid, "labels.4", "labels.4: is given twice"},
		"what a type says itself": {`{"even":3}`, apperr.Invalid, "even", "is odd"},
		"too deep":                {`{"list":` + deep, apperr.Invalid, "", "exceeded max depth"},
		"invalid UTF-8":           {"{\"name\":\"\xff\"}", apperr.Invalid, "", "not UTF-8"},
		"UTF-16":                  {"\xff\xfe{\x00}\x00", apperr.Invalid, "", "not UTF-8"},
		"too large":               {`{"name":"` + strings.Repeat("a", MaxBody) + `"}`, apperr.TooLarge, "", "larger than 1048576 bytes"},
		"white space without end": {strings.Repeat(" ", MaxBody+1), apperr.TooLarge, "", "larger than 1048576 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Body[thing](post(tc.body))
			e := apperr.As(err)
			if e.Code != tc.code || !strings.Contains(e.Message, tc.detail) {
				t.Errorf("got %s %.200q", e.Code, e.Message)
			}
			switch {
			case tc.field == "" && len(e.Fields) != 0:
				t.Errorf("it blames the fields %v", e.Fields)
			case tc.field != "" && (len(e.Fields) != 1 || !strings.HasPrefix(e.Fields[0].Field, tc.field)):
				t.Errorf("it blames %.200v, not %s", e.Fields, tc.field)
			}
			// What the client sent is not sent back, nor logged, at any length.
			if answer := failure(err, "", ""); len(answer.Body) > 2000 || len(err.Error()) > 1000 {
				t.Errorf("the answer has %d bytes, the log's line %d", len(answer.Body), len(err.Error()))
			}
		})
	}
}

func TestBodyContentType(t *testing.T) {
	t.Parallel()
	for kind, want := range map[string]apperr.Code{
		"application/json": "", "application/json; charset=utf-8": "", "Application/JSON": "", "application/json;charset": "",
		"": apperr.UnsupportedMedia, "text/plain": apperr.UnsupportedMedia, "application/x-www-form-urlencoded": apperr.UnsupportedMedia,
		"application/jsonx": apperr.UnsupportedMedia, "application/json, text/html": apperr.UnsupportedMedia, "multipart/form-data; boundary=x": apperr.UnsupportedMedia,
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			r := post("{}")
			r.Header.Set("Content-Type", kind)
			if _, err := Body[thing](r); apperr.CodeOf(err) != want {
				t.Errorf("got %v, want %q", err, want)
			}
		})
	}
}

// TestBodyThatBreaks off on its way is the client's fault, and its cause is not shown.
func TestBodyThatBreaks(t *testing.T) {
	t.Parallel()
	r := httptest.NewRequest(http.MethodPost, "/x", broken{})
	r.Header.Set("Content-Type", "application/json")
	_, err := Body[thing](r)
	if e := apperr.As(err); e.Code != apperr.Invalid || strings.Contains(e.Message, "10.0.0.1") {
		t.Errorf("got %s %q", e.Code, e.Message)
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("read tcp 10.0.0.1: reset") }

// FuzzBody holds Body to its word: it never panics, what it refuses is the client's fault and a valid problem,
// and what it takes can be written and taken again.
func FuzzBody(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"name":"a","count":1,"small":2,"ratio":0.5,"start":false,"list":["x"],"labels":{"a":"b"},"key":"k","even":4,"inner":[{"id":"i","size":1}]}`,
		`{"nam":1}`, `{"name":"a","labels":{"a":"\\","\u0061":"b"}}`, `{"count":1e400}`, `{"inner":[{"size":"x"}]}`, `{"name":"\ud800"}`, `{"a":1}{}`, `[[[[`, "\xff", "{\"\x00\":1}", `null`, ``,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		in, err := Body[thing](post(string(body)))
		if err != nil {
			e := apperr.As(err)
			if e.Code != apperr.Invalid && e.Code != apperr.TooLarge || e.Message == "" {
				t.Errorf("got %s %q", e.Code, e.Message)
			}
			answer := failure(err, "", "")
			var p Problem
			if json.Unmarshal(answer.Body, &p) != nil || p.Status != answer.Status || p.Detail == "" || len(answer.Body) > 4000 {
				t.Errorf("the problem is %.500s", answer.Body)
			}
			return
		}
		in.Key = "" // written as [redacted]
		again, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		back, err := Body[thing](post(string(again)))
		back.Key = ""
		if diff := cmp.Diff(in, back); err != nil || diff != "" {
			t.Errorf("%v %s", err, diff)
		}
	})
}

// BenchmarkBody reads an order of 50 servers, of which each is described in full.
func BenchmarkBody(b *testing.B) {
	var body strings.Builder
	body.WriteString(`{"name":"a","inner":[`)
	for range 50 {
		body.WriteString(`{"id":"4f6d6c0a-52b8-4b0e-9b7c-6f0f5a1f7c42","size":12345},`)
	}
	body.WriteString(`{"id":"` + strings.Repeat("x", 1<<14) + `"}]}`)
	data := body.String()
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if _, err := Body[thing](post(data)); err != nil {
			b.Fatal(err)
		}
	}
}
