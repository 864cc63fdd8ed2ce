package httpx

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// numbered returns n labels.
func numbered(n int) string {
	labels := make([]string, n)
	for i := range labels {
		labels[i] = fmt.Sprintf("%q:\"x\"", strconv.Itoa(i))
	}
	return strings.Join(labels, ",")
}

func TestScan(t *testing.T) {
	t.Parallel()
	const twice, control, half = "is given twice", "control", "surrogate"
	for body, want := range map[string]string{
		`{"k":"a\u0000b"}`:                        "k: " + control,
		`{"labels":{"a.b":["\\u0000","\u0000"]}}`: "labels.a.b[1]: " + control,
		`{"a\u0000":1}`:                           "a\uFFFD: " + control,
		`["\ud800","\udc00\ud800","\ud83d\ude80\u00e9\n","\ud83dx","\ud83d\\ude80"]`: "[0]: " + half + "; [1]: " +
			half + "; [3]: " + half + "; [4]: " + half,
		`{"a":"\u0000","a":"\uD83D\uDE80"}`: "a: " + control + "; a: " + twice,
	} {
		var found []string
		faults, err := scan([]byte(body))
		if err != nil {
			t.Errorf("%s: %v", body, err)
		}
		for _, f := range faults {
			for _, kind := range []string{twice, control, half} {
				if strings.Contains(f.Detail, kind) {
					found = append(found, f.Field+": "+kind)
				}
			}
		}
		if got := strings.Join(found, "; "); got != want {
			t.Errorf("%s: got %s, want %s", body, got, want)
		}
	}
}

// FuzzScan checks that a body without faults has only texts that can be stored, and that encoding/json changes none.
func FuzzScan(f *testing.F) {
	for _, seed := range []string{
		`{"a":"\u0000"}`, `{"\u0000":1}`, `["\\u0000","\\\u0000"]`,
		`["\ud800","\ud83d\ude80","\ude80\ud83d"]`, `"\uD83D\uD83D\uDE80"`,
		`"\ud83d`, `{"a":{"b":[[],{},"\"\u0041"]}}`, `1`, `"\u00`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, body string) {
		var tree any
		if json.Unmarshal([]byte(body), &tree) != nil || !utf8.ValidString(body) {
			return
		}
		if faults, err := scan([]byte(body)); len(faults) > 0 || err != nil {
			return
		}
		hasOwn := strings.Contains(body, "\uFFFD") || strings.Contains(strings.ToLower(body), `\ufffd`)
		if all := fmt.Sprint(tree); strings.Contains(all, "\x00") || strings.Contains(all, "\uFFFD") && !hasOwn {
			t.Errorf("%s has no fault, and is read as %q", body, all)
		}
	})
}

func TestDuplicateKeys(t *testing.T) {
	t.Parallel()
	for body, field := range map[string]string{
		`{}`: "",
		`{"name":"a","labels":{"name":"a","k":"{\"k\":"},"inner":[{"id":"a"},{"id":"a"}]}`: "",
		`{"labels":{"a":"1","A":"2"}}`:                                          "",
		`{"name":"a","count":1,"name":"a"}`:                                     "name",
		"{ \"name\" : \"a\" ,\n\"n\\u0061me\" : \"b\" }":                        "name",
		`{"count":1,"labels":{"a":"1","b":"\"a\"","a":"2"},"start":true}`:       "labels.a",
		`{"list":["x","x"],"inner":[{"id":"a"},{"id":"b","size":-1,"id":"c"}]}`: "inner[1].id",
		`{"labels":{},"labels":{}}`:                                             "labels",
		`{"labels":{` + numbered(100) + `,"40":"x"}}`:                           "labels.40",
		`{"labels":{` + numbered(100) + `,"4":"x"}}`:                            "labels.4",
	} {
		found, err := scan([]byte(body))
		if err != nil {
			t.Errorf("%.100s: %v", body, err)
		}
		if field == "" && found == nil {
			continue
		}
		if len(found) != 1 || found[0].Field != field || !strings.HasPrefix(found[0].Detail, "is given twice") {
			t.Errorf("%.100s: got %v, want it for %s", body, found, field)
		}
	}
}

func TestBodyMediaType(t *testing.T) {
	t.Parallel()
	for kind, want := range map[string]apperr.Code{
		"application/json": "", "application/json; charset=utf-8": "", "Application/JSON": "",
		"application/json;charset": "", "": apperr.UnsupportedMedia, "text/plain": apperr.UnsupportedMedia,
		"application/x-www-form-urlencoded": apperr.UnsupportedMedia,
		"multipart/form-data; boundary=x":   apperr.UnsupportedMedia,
	} {
		r := httptest.NewRequest(http.MethodPost, "/x", strings.NewReader("{}"))
		r.Header.Set("Content-Type", kind)
		if _, err := readMedia(r); apperr.CodeOf(err) != want {
			t.Errorf("%q: got %v, want %q", kind, err, want)
		}
	}
}

// TestBodyThatBreaks off is the client's fault, and its cause is not shown.
func TestBodyThatBreaks(t *testing.T) {
	t.Parallel()
	r := httptest.NewRequest(http.MethodPost, "/x", broken{})
	r.Header.Set("Content-Type", "application/json")
	_, err := readMedia(r)
	if e := apperr.As(err); e.Code != apperr.Invalid || strings.Contains(e.Message, "10.0.0.1") {
		t.Errorf("got %s %q", e.Code, e.Message)
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("read tcp 10.0.0.1: reset") }

// FuzzOperation checks that an operation never panics, that what it rejects is the client's fault and a valid problem,
// and that it takes its own answer as a request.
func FuzzOperation(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"name":"a","count":1,"start":false,"labels":{"a":"b"},"key":"k","parts":[{"size":1}]}`, `{"nam":1}`,
		`{"name":"a","labels":{"a":"\\","\u0061":"b"}}`, `{"count":1e400}`, `{"parts":[{"size":"x"}]}`,
		`{"name":"\ud800"}`, `{"a":1}{}`, `[[[[`, "\xff", "{\"\x00\":1}", `null`, ``, `{"name":"a","labels":{"a.b[0":1}}`,
	} {
		f.Add(seed)
	}
	var done int
	route := orders(&done)
	f.Fuzz(func(t *testing.T, body string) {
		answer, err := route.send(orderPath, "application/json", body)
		if err != nil {
			e := apperr.As(err)
			if e.Code != apperr.Invalid && e.Code != apperr.TooLarge || e.Message == "" {
				t.Errorf("got %s %q", e.Code, e.Message)
			}
			failed := failure(err, "", "")
			var p Problem
			if json.Unmarshal(failed.Body, &p) != nil || p.Status != failed.Status || p.Detail == "" ||
				len(failed.Body) > 8000 {
				t.Errorf("the problem is %.500s", failed.Body)
			}
			return
		}
		var in order
		if err := json.Unmarshal(answer.Body, &in); err != nil {
			t.Fatal(err)
		}
		in.Key = nil // written as [redacted]
		sent, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		back, err := route.send(orderPath, "application/json", string(sent))
		if err != nil || strings.TrimSpace(string(back.Body)) != string(sent) {
			t.Errorf("sent %s, got %s %v", sent, back.Body, err)
		}
	})
}

// reports serves an operation whose handler checks credentials of its own, after the body is read.
func reports() Route {
	return Routes(func(api huma.API) {
		Register(api, huma.Operation{
			OperationID: "report", Method: http.MethodPost, Path: "/x",
			Security: []map[string][]string{{"nodeToken": {}}},
		}, func(context.Context, *struct{ Body map[string]string }) (*struct{}, error) { return &struct{}{}, nil })
	})[0]
}

// TestAnonymousBodies are small and come immediately: they are read before anyone knows who sends them.
func TestAnonymousBodies(t *testing.T) {
	t.Parallel()
	padded := func(size int) string { return `{"a":"` + strings.Repeat("x", size-len(`{"a":""}`)) + `"}` }
	for name, tc := range map[string]struct {
		body   io.Reader
		status int
		detail string
		took   time.Duration
	}{
		"of the largest size": {strings.NewReader(padded(16 << 10)), 204, "", 0},
		"a byte larger":       {strings.NewReader(padded(16<<10 + 1)), 413, "the body is larger than 16384 bytes", 0},
		"slow but honest":     {&slowly{piece: `{      `, most: 9}, 400, "not valid JSON", 9 * time.Second},
		"at the rate of others": {
			&slowly{piece: strings.Repeat(" ", 2*bodyRate)}, 413, "the body is larger than 16384 bytes",
			9 * time.Second,
		},
		"a third of that": {
			&slowly{piece: strings.Repeat(" ", bodyRate)}, 400, "without X-Auth-Token all of it within 10s", bodyGrace,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			edge := (&recorder{}).edge()
			edge.Timeout = time.Minute
			api := edge.Handler([]Route{reports()})
			synctest.Test(t, func(t *testing.T) {
				client := inMemory(t, api, func(c net.Conn) net.Conn { return c })
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://x/x", tc.body)
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("Content-Type", jsonType)
				began := time.Now()
				resp, err := client.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				took := time.Since(began)
				defer time.Sleep(2 * time.Second) // the transport ends with the body's next piece
				text, _ := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				if resp.StatusCode != tc.status || !strings.Contains(string(text), tc.detail) || took < tc.took ||
					took > tc.took+2*time.Second {
					t.Errorf("got %d %s after %s", resp.StatusCode, text, took)
				}
			})
		})
	}
}

// TestCostlyBodies are rejected before anything is made of them: a map for each of 350 000 objects takes 20 MB. It is
// not parallel, because it counts allocations.
func TestCostlyBodies(t *testing.T) {
	var done int
	route := orders(&done)
	objects := `{"x":[` + strings.Repeat(`{},`, MaxBody/3-10) + `{}]`
	for name, tc := range map[string]struct {
		body string
		code apperr.Code
	}{
		"objects":            {objects + `}`, apperr.TooLarge},
		"objects with a key": {`{"x":[` + strings.Repeat(`{"a":0},`, 3000) + `{}]}`, apperr.TooLarge},
		"numbers":            {`{"x":[` + strings.Repeat(`0,`, 25_000) + `0]}`, apperr.TooLarge},
		"keys":               {`{` + numbered(25_000) + `}`, apperr.TooLarge},
		"in invalid UTF-8":   {objects + ",\"\xff\":0}", apperr.Invalid},
		"a hundred instances with all metadata that Nova takes": {
			`{"x":[` + strings.Repeat(`{"metadata":{`+numbered(128)+`}},`, 100) + `{}]}`, apperr.Invalid,
		},
	} {
		var err error
		allocated := testing.AllocsPerRun(1, func() { _, err = route.send(orderPath, jsonType, tc.body) })
		e := apperr.As(err)
		if hasMany := strings.Contains(e.Message, "the body has more than 25000 values"); e.Code != tc.code ||
			hasMany != (tc.code == apperr.TooLarge) || allocated > 60_000 {
			t.Errorf("%s: got %s %.200q after %.0f allocations", name, e.Code, e.Message, allocated)
		}
	}
}

// TestSameRequest: with an Idempotency-Key it is the same request whatever the order of its fields, and spaces.
func TestSameRequest(t *testing.T) {
	t.Parallel()
	mac := func(target, body string) string {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, target, nil)
		return string(secrets{mac: []byte("k")}.macOf(&call{request: r, body: []byte(body)}))
	}
	first := mac("/x?a=1&b=2", `{"size": 12345678901234567890, "of": {"a": null, "b": [1, 2]}}`)
	if mac("/x?b=2&a=1", "{\"of\":{\"b\":[1,2],\"a\":null},\n\"size\":12345678901234567890}") != first {
		t.Error("the same in another order is another request")
	}
	for _, other := range [][2]string{
		{"/x?a=1&b=2", `{"size": 12345678901234567891, "of": {"a": null, "b": [1, 2]}}`},
		{"/x?a=1&b=2", `{"size": 12345678901234567890, "of": {"a": null, "b": [2, 1]}}`},
		{"/x?a=1&b=3", `{"size": 12345678901234567890, "of": {"a": null, "b": [1, 2]}}`},
		{"/y?a=1&b=2", `{"size": 12345678901234567890, "of": {"a": null, "b": [1, 2]}}`},
		{"/x?a=1&b=2", `{"size": 1, "of": {"a": null, "b": [1, 2]}}`},
		{"/x?a=1&b=2", `{"size": 12345678901234567890, "of": {"a": null, "b": [1.0, 2]}}`},
		{"/x?a=1&b=2", `{"size": 12345678901234567890.0, "of": {"a": null, "b": [1, 2]}}`},
		{"/x?a=1&b=2", `{"size": 12345678901234567890, "of": {"b": [1, 2]}}`},
		{"/x?a=1&b=2", ""},
	} {
		if mac(other[0], other[1]) == first {
			t.Errorf("%s is the same request", other)
		}
	}
}
