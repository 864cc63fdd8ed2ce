package httpx

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
	"pgregory.net/rapid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// order is a request with a field of each kind.
type order struct {
	Name   string            `json:"name" minLength:"1" maxLength:"10"`
	Count  int               `json:"count,omitempty" minimum:"1" maximum:"50"`
	Start  *bool             `json:"start,omitempty"`
	Mode   string            `json:"mode,omitempty" enum:"fast,slow"`
	Key    *domain.Secret    `json:"key,omitempty" pattern:"^k"`
	ID     *ID               `json:"id,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
	Parts  []orderPart       `json:"parts,omitempty" maxItems:"2"`
}

// Resolve finds fault with a name that huma has rejected already, or could not read.
func (o *order) Resolve(huma.Context) []error {
	if o.Name == "" {
		return []error{apperr.InvalidField("name", "canary")}
	}
	return nil
}

type orderPart struct {
	Size int `json:"size"`
}

type orderInput struct {
	PageRequest
	ID     ID   `path:"id"`
	Force  bool `query:"force"`
	Marker ID   `query:"marker"`
	Body   order
}

// orders serves POST /orders/{id}, and says how often it was done.
func orders(done *int) Route {
	return Routes(func(api huma.API) {
		Register(api, huma.Operation{OperationID: "order", Method: http.MethodPost, Path: "/orders/{id}"},
			func(_ context.Context, in *orderInput) (*Value[order], error) {
				*done++
				return &Value[order]{in.Body}, nil
			})
	})[0]
}

const orderPath = "/orders/019b7c5e-4c30-7d55-8e1c-3a7b2d1f0b22"

// call sends a body as Edge does.
func (route Route) send(target, kind, body string) (Response, error) {
	var w exchange
	r := httptest.NewRequest(http.MethodPost, target, strings.NewReader(body))
	r.Header.Set("Content-Type", kind)
	r.Body = http.MaxBytesReader(nil, r.Body, MaxBody)
	mux := http.NewServeMux()
	mux.Handle(route.Pattern, route)
	w.header = http.Header{}
	mux.ServeHTTP(&w, r)
	return route.serve(w.request)
}

func TestOperationTakes(t *testing.T) {
	t.Parallel()
	var done int
	route := orders(&done)
	for body, want := range map[string]string{
		`{"name":"é<✓>"}`: `{"name":"é<✓>"}`,
		` {"name":"a","count":2,"start":null,"mode":"slow","labels":{"a":"1","A":"2"},"parts":[{"size":1}]} `: `{"name":"a","count":2,"mode":"slow","labels":{"A":"2","a":"1"},"parts":[{"size":1}]}`,
	} {
		resp, err := route.send(orderPath, "Application/JSON; charset=utf-8", body)
		if err != nil || resp.Status != 200 || strings.TrimSpace(string(resp.Body)) != want ||
			resp.Header.Get("Link") != "" {
			t.Errorf("%s: got %d %s %v %v", body, resp.Status, resp.Body, resp.Header, err)
		}
	}
	if _, err := route.send("/orders/"+strings.ToUpper(orderPath[8:]), "application/json", `{"name":"a"}`); err != nil {
		t.Errorf("an id in capitals: %v", err)
	}
}

// TestOperationRejects with all the faults of a request, by their fields and without their values, and is not run.
func TestOperationRejects(t *testing.T) {
	t.Parallel()
	var done int
	route := orders(&done)
	for name, tc := range map[string]struct {
		target, body string
		code         apperr.Code
		fields       string
		detail       string
	}{
		"all together": {
			orderPath + "?force=si&limit=0&x=1&marker=canary",
			`{"count":99,"mode":"canary","key":"canary","parts":[{"size":"x"},{}],"nam":1}`, apperr.Invalid,
			"count force key limit marker mode nam name parts[0].size parts[1].size x", "name: is missing",
		},
		"allowed values": {
			orderPath, `{"name":"a","mode":"canary"}`, apperr.Invalid, "mode", "must be one of fast, slow",
		},
		"a parameter twice": {
			orderPath + "?limit=1&limit=2", `{"name":"a"}`, apperr.Invalid, "limit", "more than once",
		},
		"an empty parameter": {orderPath + "?limit=", `{"name":"a"}`, apperr.Invalid, "limit", "leave it out"},
		"a malformed query": {
			orderPath + "?limit=%zz", `{"name":"a"}`, apperr.Invalid, "", "the query is malformed",
		},
		"a key twice":           {orderPath, `{"name":"a","name":"b"}`, apperr.Invalid, "name", "is given twice"},
		"a key in another case": {orderPath, `{"name":"a","Name":"b"}`, apperr.Invalid, "Name", "is not a field"},
		"the zero UUID": {
			orderPath, `{"name":"a","id":"00000000-0000-0000-0000-000000000000"}`, apperr.Invalid, "id",
			"must be a UUID",
		},
		"a UUID of another form": {
			orderPath, `{"name":"a","id":"019b7c5e4c307d558e1c3a7b2d1f0b22"}`, apperr.Invalid, "id", "must be a UUID",
		},
		"keys with dots": {
			orderPath, `{"name":"a","labels":{"a.b":"x","c.d[0].e":5},"parts":[{"size":"x"}],"x.y":1}`, apperr.Invalid,
			"labels.c.d[0].e parts[0].size x.y", "must be a string",
		},
		"another type": {
			orderPath, `{"name":5,"start":"canary","labels":[]}`, apperr.Invalid, "labels name start",
			"labels: must be an object",
		},
		"a list":             {orderPath, `[]`, apperr.Invalid, "", "the body must be an object"},
		"nothing":            {orderPath, ``, apperr.Invalid, "", "the body is empty"},
		"two values":         {orderPath, `{"name":"a"}{}`, apperr.Invalid, "", "not valid JSON"},
		"cut off":            {orderPath, `{"name":`, apperr.Invalid, "", "not valid JSON"},
		"out of every range": {orderPath, `{"name":"a","count":1e400}`, apperr.Invalid, "", "the body"},
		"invalid UTF-8":      {orderPath, "{\"name\":\"\xff\"}", apperr.Invalid, "", "not UTF-8"},
		"very many faults": {
			orderPath, `{"name":"a",` + numbered(1000) + `}`, apperr.Invalid,
			"0 1 10 100 101 102 103 104 105 106 107 108 109 11 110 111 112 113 114 115", "and 980 faults more",
		},
		"a very long field": {
			orderPath, `{"name":"a","` + strings.Repeat("9", MaxBody/2) + `":1}`, apperr.Invalid,
			strings.Repeat("9", maxQuote), "is not a field",
		},
		"too large": {
			orderPath, `{"name":"` + strings.Repeat("a", MaxBody) + `"}`, apperr.TooLarge, "",
			"larger than 1048576 bytes",
		},
		"no UUID in the path":  {"/orders/x?x=1", `{}`, apperr.NotFound, "", "id in the path is not a UUID"},
		"not that body either": {"/orders/x", `{`, apperr.NotFound, "", "id in the path is not a UUID"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := route.send(tc.target, "application/json", tc.body)
			e := apperr.As(err)
			var fields []string
			for _, f := range e.Fields {
				if !slices.Contains(fields, f.Field) {
					fields = append(fields, f.Field)
				}
			}
			answer := failure(err, "", "")
			if e.Code != tc.code || strings.Join(fields, " ") != tc.fields || !strings.Contains(e.Message, tc.detail) {
				t.Errorf("got %s %v %.300q", e.Code, fields, e.Message)
			}
			if len(answer.Body) > 4000 || strings.Contains(string(answer.Body), "canary") {
				t.Errorf("the answer is %.300s", answer.Body)
			}
		})
	}
	for _, kind := range []string{
		"", "text/plain", "application/jsonx", "x/y+application/json", "application/json, text/html",
	} {
		if _, err := route.send(orderPath, kind, `{"name":"a"}`); apperr.CodeOf(err) != apperr.UnsupportedMedia {
			t.Errorf("%q: got %v", kind, err)
		}
	}
	if done != 0 {
		t.Errorf("it was done %d times", done)
	}
}

// BenchmarkOperation posts a small body to an operation.
func BenchmarkOperation(b *testing.B) {
	var done int
	route := orders(&done)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := route.send(orderPath+"?limit=5", "application/json",
			`{"name":"a","count":2,"mode":"slow","parts":[{"size":1}]}`); err != nil {
			b.Fatal(err)
		}
	}
}

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

// endings are KeyedRequests that record how the attempts end.
type endings []string

func (e *endings) Begin(_ context.Context, r domain.KeyedRequest, _ time.Duration) (domain.KeyedRequest, error) {
	return r, nil
}

func (e *endings) Finish(context.Context, domain.KeyedRequest, []byte) error {
	return e.add("finished")
}

func (e *endings) Abandon(context.Context, domain.KeyedRequest) error { return e.add("abandoned") }

func (e *endings) Release(context.Context, domain.KeyedRequest) error { return e.add("released") }

func (e *endings) add(ending string) error {
	*e = append(*e, ending)
	return nil
}

// TestEndOfAttempt: the next request with the key goes on with what may not be done, and is not answered from what is
// stored.
func TestEndOfAttempt(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		retryAfter string
		err        error
		want       string
	}{
		"done":                         {"", nil, "finished"},
		"interrupted":                  {"5", nil, "released"},
		"rejected":                     {"", apperr.New(apperr.Conflict, "x"), "abandoned"},
		"OpenStack is busy":            {"", apperr.New(apperr.RateLimited, "x"), "released"},
		"the token ends on the way":    {"", apperr.New(apperr.Unauthenticated, "x"), "released"},
		"OpenStack does not answer":    {"", apperr.New(apperr.Timeout, "x"), "released"},
		"the caller closes the socket": {"", context.Canceled, "released"},
	} {
		var found endings
		edge := (&recorder{}).edge()
		edge.Keys = &found
		route := Routes(func(api huma.API) {
			Serve[struct{}, struct{}](api, Idempotent(huma.Operation{Method: http.MethodPost, Path: "/things"}),
				func(context.Context, *struct{}) (Response, error) {
					return Response{Status: 200, Header: http.Header{"Retry-After": {tc.retryAfter}}}, tc.err
				})
		})[0]
		r := httptest.NewRequest(http.MethodPost, "/things", nil)
		r.Header.Set(keyHeader, "a-key-of-this-test")
		edge.Handler([]Route{route}).ServeHTTP(httptest.NewRecorder(), r)
		if got := strings.Join(found, " "); got != tc.want {
			t.Errorf("%s: the attempt is %s, want %s", name, got, tc.want)
		}
	}
}
