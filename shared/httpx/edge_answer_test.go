package httpx

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// TestNoInternalsInAnswers: a panic and an unknown error differ in the log only.
func TestNoInternalsInAnswers(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/panic", "/fail"} {
		w := (&recorder{}).get(path, nil)
		body := w.Body.String()
		if p := problem(t, w); w.Code != 500 || p.Code != apperr.Internal || p.Detail != "internal error" {
			t.Errorf("%s: got %+v", path, p)
		}
		for _, inner := range []string{"canary-internals", "goroutine", ".go:"} {
			if strings.Contains(body, inner) {
				t.Errorf("%s: the answer shows %q: %s", path, inner, body)
			}
		}
	}
}

func TestMethods(t *testing.T) {
	t.Parallel()
	get := (&recorder{}).get("/private/1", nil)
	for method, status := range map[string]int{
		http.MethodHead: 200, http.MethodPost: 405, http.MethodPut: 405, http.MethodDelete: 405,
		http.MethodOptions: 405, "BREW": 405,
	} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			j := &recorder{}
			w := j.do(httptest.NewRequest(method, "/private/1", nil), nil)
			if w.Code != status || len(j.rows) != 1 || j.rows[0].Method != method || j.rows[0].Status != status {
				t.Fatalf("got %d, rows %+v", w.Code, j.rows)
			}
			if status == 405 {
				if p := problem(t, w); w.Header().Get("Allow") != "GET, HEAD" || p.Code != apperr.MethodNotAllowed ||
					slices.Contains(j.steps, "handler") {
					t.Errorf("got %v %+v, steps %v", w.Header(), p, j.steps)
				}
				return
			}
			if w.Body.Len() != 0 || w.Header().Get("Content-Type") != get.Header().Get("Content-Type") {
				t.Errorf("HEAD got %q %v", w.Body, w.Header())
			}
		})
	}
	if got := get.Body.String(); got != `{"answer":"from the <handler>"}`+"\n" ||
		get.Header().Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("GET got %s %v", got, get.Header())
	}
}

func TestRequestIDs(t *testing.T) {
	t.Parallel()
	const id = "11111111-2222-4333-8444-abcdefabcdef"
	for name, tc := range map[string]struct{ given, want string }{
		"ours":            {"req-" + id, "req-" + id},
		"a UUID":          {id, "req-" + id},
		"in upper case":   {"req-" + strings.ToUpper(id), "req-" + id},
		"none":            {"", ""},
		"garbage":         {"x\r\nSet-Cookie: a=b", ""},
		"a UUID in a URN": {"urn:uuid:" + id, ""},
		"in braces":       {"{" + id + "}", ""},
		"without dashes":  {strings.ReplaceAll(id, "-", ""), ""},
		"doubled prefix":  {"req-req-" + id, ""},
		"more behind it":  {"req-" + id + "0", ""},
		"very long":       {strings.Repeat("req-"+id, 1000), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := &recorder{}
			got := j.get("/private/1", http.Header{"X-Request-Id": {tc.given}}).Header().Get("X-Request-Id")
			if tc.want != "" && got != tc.want || len(got) != 40 || requestID(got) != got ||
				j.rows[0].RequestID != got {
				t.Errorf("got %q, want %q, row %q", got, tc.want, j.rows[0].RequestID)
			}
		})
	}
	if a, b := requestID(""), requestID(""); a == b {
		t.Errorf("two requests have the id %s", a)
	}
	if id := RequestID(NewRequestID(t.Context())); requestID(id) != id || RequestID(t.Context()) != "" {
		t.Errorf("got %q", id)
	}
}
