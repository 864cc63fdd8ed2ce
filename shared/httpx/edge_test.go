package httpx

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// TestRelayed answers are another function's, whose row is written there; and a public route may find out who it
// serves.
func TestRelayed(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		resp Response
		rows []string
	}{
		"relayed":   {Response{Status: 200, Relayed: true}, nil},
		"its own":   {Response{Status: 200}, []string{""}},
		"someone's": {Response{Status: 200, Caller: domain.Identity{UserID: "u2", ProjectID: "p2"}}, []string{"u2p2"}},
	} {
		j := &recorder{}
		route := Handle("GET /x", func(*http.Request) (Response, error) { return tc.resp, nil })
		route.Public = true
		w := httptest.NewRecorder()
		j.edge().Handler([]Route{route}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/x", nil))
		var rows []string
		for _, row := range j.rows {
			rows = append(rows, row.UserID+row.ProjectID)
		}
		if w.Code != http.StatusOK || !slices.Equal(rows, tc.rows) || j.steps[0] != "ready" {
			t.Errorf("%s: got %d with the rows %v", name, w.Code, rows)
		}
	}
}

// TestOrder is what a request may cause, and what it must not when something before it failed.
func TestOrder(t *testing.T) {
	t.Parallel()
	unavailable, refused := apperr.New(apperr.Unavailable, "unavailable"), apperr.New(apperr.Unauthenticated, "who?")
	for name, tc := range map[string]struct {
		path                string
		ready, auth, record error
		status              int
		steps               []string
	}{
		"private": {
			"/private/1", nil, nil, nil, 200, []string{"ready", "authenticate tok", "handler", "record"},
		},
		"public":                {"/public", nil, nil, nil, 200, []string{"ready", "handler", "record"}},
		"a probe":               {"/probe", nil, nil, nil, 200, []string{"handler"}},
		"a panic":               {"/panic", nil, nil, nil, 500, []string{"ready", "authenticate tok", "record"}},
		"nothing there":         {"/nothing", nil, nil, nil, 404, []string{"ready", "record"}},
		"an unclean path":       {"/private//1", nil, nil, nil, 404, []string{"ready", "record"}},
		"a NUL in the path":     {"/private/a%00b", nil, nil, nil, 404, []string{"ready", "record"}},
		"a path not in UTF-8":   {"/private/%ff", nil, nil, nil, 404, []string{"ready", "record"}},
		"healthz":               {"/healthz", unavailable, unavailable, unavailable, 200, nil},
		"private, no log":       {"/private/1", unavailable, nil, nil, 503, []string{"ready", "record"}},
		"public, no log":        {"/public", unavailable, nil, nil, 503, []string{"ready", "record"}},
		"nothing there, no log": {"/nothing", unavailable, nil, nil, 503, []string{"ready", "record"}},
		"a probe, no log":       {"/probe", unavailable, nil, unavailable, 200, []string{"handler"}},
		"refused": {
			"/private/1", nil, refused, nil, 401, []string{"ready", "authenticate tok", "record"},
		},
		"the row fails": {
			"/private/1", nil, nil, unavailable, 503, []string{"ready", "authenticate tok", "handler", "record"},
		},
		"the row of a 404 fails": {"/nothing", nil, nil, unavailable, 503, []string{"ready", "record"}},
		"the row of a refusal fails": {
			"/private/1", nil, refused, unavailable, 503, []string{"ready", "authenticate tok", "record"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := &recorder{ready: tc.ready, auth: tc.auth, record: tc.record}
			w := j.get(tc.path, http.Header{"X-Auth-Token": {"tok"}})
			if diff := cmp.Diff(tc.steps, j.steps); diff != "" || w.Code != tc.status {
				t.Errorf("got %d, steps %s", w.Code, diff)
			}
			if tc.status == 200 {
				return
			}
			if p := problem(t, w); strings.Contains(w.Body.String()+p.Detail, "handler>") {
				t.Error("the handler's answer was sent without its row")
			}
			if tc.status == 503 && w.Header().Get("Retry-After") == "" {
				t.Error("no Retry-After")
			}
			if tc.status == 401 &&
				w.Header().Get("WWW-Authenticate") != `Keystone uri="https://keystone.example.com/v3"` {
				t.Errorf("WWW-Authenticate is %q", w.Header().Get("WWW-Authenticate"))
			}
		})
	}
}

// TestRow is what the request log holds of a request.
func TestRow(t *testing.T) {
	t.Parallel()
	const id = "req-11111111-2222-4333-8444-555555555555"
	for name, tc := range map[string]struct {
		path string
		auth error
		want domain.Request
	}{
		"served": {
			"/private/1?secret=canary", nil, domain.Request{
				Function: "things", Path: "/private/1", Status: 200, UserID: "u1", ProjectID: "p1", DomainID: "d1",
			},
		},
		"refused": {
			"/private/1", apperr.New(apperr.Forbidden, "no"), domain.Request{
				Function: "things", Path: "/private/1", Status: 403, UserID: "u1", ProjectID: "p1", DomainID: "d1",
				Code: "forbidden",
			},
		},
		"nothing": {"/a%20%00b%ff", nil, domain.Request{Path: "/a \uFFFDb\uFFFD", Status: 404, Code: "not_found"}},
		"failed": {
			"/fail", nil, domain.Request{
				Path: "/fail", Status: 500, UserID: "u1", ProjectID: "p1", DomainID: "d1", Code: "internal",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := &recorder{auth: tc.auth}
			j.get(tc.path, http.Header{
				"X-Auth-Token": {"canary"}, "X-Request-Id": {id}, "X-Forwarded-For": {"6.6.6.6"},
			})
			if len(j.rows) != 1 {
				t.Fatalf("there are %d rows", len(j.rows))
			}
			got := j.rows[0]
			if got.ID.Version() != 7 || got.Duration <= 0 {
				t.Errorf("id %s, duration %s", got.ID, got.Duration)
			}
			tc.want.ID, tc.want.Duration, tc.want.Method, tc.want.RequestID, tc.want.Remote = got.ID, got.Duration,
				"GET", id, "192.0.2.1"
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

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

// TestUnrecordedChange: the answer to a change that was made, and whose row cannot be written, says so. The answer to
// what was not done, or changes nothing, does not.
func TestUnrecordedChange(t *testing.T) {
	t.Parallel()
	missing := apperr.New(apperr.Unavailable, "the request log cannot be written")
	const mutation = "POST,PUT,PATCH,DELETE"
	for name, c := range map[string]struct {
		methods string
		failed  error
		edge    *recorder
		want    string
	}{
		"made":          {mutation, nil, &recorder{record: missing}, "unknown"},
		"may be made":   {mutation, apperr.New(apperr.BadGateway, "x"), &recorder{record: missing}, "unknown"},
		"crashed":       {mutation, errors.New("x"), &recorder{record: missing}, "unknown"},
		"refused":       {mutation, apperr.New(apperr.Conflict, "x"), &recorder{record: missing}, ""},
		"not begun":     {mutation, nil, &recorder{ready: missing, record: missing}, ""},
		"not signed in": {mutation, nil, &recorder{auth: missing, record: missing}, ""},
		"read":          {"GET", nil, &recorder{record: missing}, ""},
	} {
		for method := range strings.SplitSeq(c.methods, ",") {
			route := Handle(method+" /things", func(*http.Request) (map[string]string, error) {
				return map[string]string{}, c.failed
			})
			w := httptest.NewRecorder()
			c.edge.edge().Handler([]Route{route}).ServeHTTP(w, httptest.NewRequest(method, "/things", nil))
			p := problem(t, w)
			if p.Status != 503 || p.Outcome != c.want || w.Header().Get("Retry-After") == "" ||
				strings.Contains(p.Detail, "may have been made") != (c.want != "") {
				t.Errorf("%s, %s: got %+v", name, method, p)
			}
		}
	}
}
