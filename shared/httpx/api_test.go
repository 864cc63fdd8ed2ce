package httpx

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/danielgtaylor/huma/v2"

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
	Page
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
		"all at once": {
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
