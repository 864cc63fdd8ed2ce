package console

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// proxyAnswersAsTheAPI and writes one row, of the function.
func proxyAnswersAsTheAPI(t *testing.T, d daemon) {
	p := testkit.BorrowProject(t)
	b := d.signIn(t, p)
	direct := d.As(testkit.Canary(p.Token(t)))
	conn := testkit.Connect(t, d.database)
	before := d.listed(t, p)
	for _, c := range []struct{ method, path, body, function string }{
		{"GET", "/v1/resources?kinds=flavors,images,networks", "", "resources"},
		{"GET", "/v1/servers?limit=1", "", "servers"},
		{"GET", "/v1/servers?limit=x", "", "servers"},
		{"GET", "/v1/servers/" + uuid.NewString(), "", "servers"},
		{"GET", "/v1/callbacks", "", "callbacks"},
		{"GET", "/v1/connections", "", "connections"},
		{"GET", "/v1/stats?hours=2", "", "stats"},
		{"GET", "/v1/nothing", "", ""},
		{"PUT", "/v1/servers", "", ""},
		{"POST", "/v1/launch", `{"name": 17}`, "launch"},
		{
			"POST", "/v1/launch?dry_run=true", `{"name": "x", "flavor": "no-such", "image": "no-such", "networks": []}`,
			"launch",
		},
		{"PATCH", "/v1/callbacks/" + uuid.NewString(), `{}`, "callbacks"},
		{"DELETE", "/v1/servers/" + uuid.NewString() + "?mode=deallocate", "", "servers"},
	} {
		want := direct.Do(t, c.method, c.path, c.body, "Content-Type", "application/json")
		got := b.send(t, c.method, apiPath+c.path, c.body)
		id := got.Header.Get("X-Request-Id")
		if got.Status != want.Status || without(t, got.Body) != without(t, want.Body) {
			t.Errorf("%s %s: got %d %s, want %d %s", c.method, c.path, got.Status, got.Body, want.Status, want.Body)
		}
		for _, name := range []string{
			"Content-Type", "Allow", "Retry-After", "WWW-Authenticate", "Cache-Control",
			"X-Content-Type-Options", "Vary",
		} {
			if got.Header.Get(name) != want.Header.Get(name) {
				t.Errorf("%s %s: %s is %q, want %q",
					c.method, c.path, name, got.Header.Get(name), want.Header.Get(name))
			}
		}
		path, _, _ := strings.Cut(c.path, "?")
		rows := testkit.Scalar[int](t, conn, "select count(*)::int from requests where request_id = $1", id)
		right := testkit.Scalar[int](t, conn,
			"select count(*)::int from requests where request_id = $1 and function = $2 and path = $3 and method = $4 and "+
				"status = $5",
			id, c.function, path, c.method, got.Status)
		if rows != 1 || right != 1 {
			t.Errorf("%s %s has %d rows, %d of them right", c.method, c.path, rows, right)
		}
	}
	if n := d.listed(t, p) - before; n != 4 {
		t.Errorf("%d rows of /v1/servers name the user", n)
	}
}

// without is a body without what differs from one request to the next.
func without(t *testing.T, body []byte) string {
	t.Helper()
	var v map[string]any
	if json.Unmarshal(body, &v) != nil {
		return string(body)
	}
	delete(v, "request_id")
	if v["code"] == "method_not_allowed" || v["code"] == "not_found" {
		delete(v, "detail") // some name a random id
	}
	text, _ := json.Marshal(v)
	return string(text)
}

// TestLongProxyLaunches launches a server, follows the Location, and hides the order from another project's session.
func TestLongProxyLaunches(t *testing.T) {
	t.Parallel()
	f := testkit.Sandbox(t)
	p, other := testkit.BorrowProject(t), testkit.BorrowProject(t)
	d := startDaemon(t)
	b := d.signIn(t, p)
	a := b.send(t, "POST", apiPath+"/v1/launch",
		fmt.Sprintf(`{"name": "x", "flavor": %q, "image": %q, "networks": [%q], "user_data": %q}`,
			f.FlavorID, f.ImageID, f.NetworkID, strings.Repeat("x", 40<<10)))
	var order struct {
		ID        string
		Instances []struct {
			ServerID string `json:"server_id"`
		}
	}
	a.JSON(t, &order)
	if a.Status != 202 || a.Header.Get("Location") != "/v1/launch/"+order.ID {
		t.Fatalf("got %d %s %s", a.Status, a.Header, a.Body)
	}
	server := "/v1/servers/" + order.Instances[0].ServerID
	testkit.Eventually(t, 2*time.Minute, "it is active", func() bool { // before, Nova answers a stranger with 403
		return strings.Contains(string(b.send(t, "GET", apiPath+server, "").Body), `"status":"ACTIVE"`)
	})
	stranger := signInTo(t, d.Client, password(other, ""))
	for _, path := range []string{"/v1/launch/" + order.ID, server} {
		if a := b.send(t, "GET", apiPath+path, ""); a.Status != 200 {
			t.Errorf("%s: got %d %s", path, a.Status, a.Body)
		}
		if a := stranger.send(t, "GET", apiPath+path, ""); a.Status != 404 {
			t.Errorf("%s, of a stranger: got %d %s", path, a.Status, a.Body)
		}
	}
}

// proxyReachesOnlyTheAPI and no events, no agents, nothing of the process, however the path is written.
func proxyReachesOnlyTheAPI(t *testing.T, d daemon) {
	b := d.signIn(t, testkit.BorrowProject(t))
	for _, path := range []string{
		"", "/", "/v1", "/healthz", "/events/poll-instances", "/console/session", "/v1/agents",
		"/v1/agents/" + uuid.NewString() + "/bundle",
		"/v1/%61gents/" + uuid.NewString() + "/bundle", "/v1%2fservers", "/v1/../events/poll-instances", "//v1/servers",
		"/v1//agents/x/bundle", "/v1/./agents/x/bundle",
		"/v1/servers/../agents/x/bundle", "/v1/%2e%2e/events/poll-instances", "/v1/agents;x/y/bundle",
	} {
		for _, method := range []string{"GET", "POST"} {
			if a := b.send(t, method, apiPath+path, ""); a.Status != 404 && a.Status != 405 {
				t.Errorf("%s %s: got %d %s", method, path, a.Status, a.Body)
			}
		}
	}
	// On the way to a function alone there is no ServeMux that could clean the path up.
	for path, want := range map[string]string{
		"/v1/servers/a%2Fb": "/v1/servers/a%2Fb", "/v1/servers/": "/v1/servers/",
		"/v1/": "/v1/", "/v1/%73ervers?x=%zz": "/v1/%73ervers?x=%zz",
	} {
		in, err := http.NewRequest(http.MethodGet, "http://x"+apiPath+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if target, err := targetOf(in.URL); err != nil || target.String() != want {
			t.Errorf("%s: got %s %v, want %s", path, target, err, want)
		}
	}
}

// TestProxyDropsIdentityHeaders ignores tokens, other cookies and forwarded headers of the request.
func TestProxyDropsIdentityHeaders(t *testing.T) {
	t.Parallel()
	p, other := testkit.BorrowProject(t), testkit.BorrowProject(t)
	var got []http.Header
	function := roundTripper(func(r *http.Request) (*http.Response, error) {
		got = append(got, r.Header.Clone())
		header := http.Header{
			"Set-Cookie": {"x=y"}, "Content-Type": {"text/plain"}, "Link": {"</v1/x>; rel=next"},
			"Connection": {"close"}, "Server": {"x"},
		}
		return &http.Response{StatusCode: 299, Header: header, Body: io.NopCloser(strings.NewReader("answer"))}, nil
	})
	database := testkit.Database(t)
	app := testkit.Start(t, testkit.Env(t, database, nil), Function)
	b := signInTo(t, app, password(p, ""))
	h := handler{svc: serviceOf(t, database), functions: function}
	r, err := http.NewRequest(http.MethodPost, app.URL+apiPath+"/v1/servers?x=y", strings.NewReader("body"))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"X-Auth-Token": other.Token(t), "Cookie": cookieName + "=" + b.cookie + "; other=1", "Authorization": "Bearer x",
		"Content-Type": "application/json",
		"Accept":       "text/plain", "X-Forwarded-For": "192.0.2.1", pageHeader: "1", "Idempotency-Key": "x",
		"Sec-Fetch-Site": "same-origin", "If-Match": `"3"`, "If-None-Match": `"4"`,
	} {
		r.Header.Set(name, value)
	}
	resp, err := h.proxy(r)
	if err != nil {
		t.Fatal(err)
	}
	want := http.Header{
		"X-Auth-Token": {stored(t, database, b.cookie).Token.Reveal()},
		"Content-Type": {"application/json"}, "Accept": {"text/plain"}, "If-Match": {`"3"`},
		"If-None-Match":   {`"4"`},
		"X-Forwarded-For": {""}, // the edge's address of the client, and never the one that its header has
		"Idempotency-Key": {"x"},
	}
	if len(got) != 1 || fmt.Sprint(got[0]) != fmt.Sprint(want) {
		t.Errorf("sent were %d headers of %d", len(got[0]), len(want))
	}
	if resp.Status != 299 || resp.ContentType != "text/plain" || string(resp.Body) != "answer" ||
		resp.Header.Get("Link") == "" || resp.Header.Get("Set-Cookie") != "" ||
		resp.Header.Get("Server") != "" || !resp.Relayed {
		t.Errorf("got %+v", resp)
	}
	endless := roundTripper(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(io.LimitReader(zeros{}, maxAnswer+1))}, nil
	})
	r.Body = http.NoBody
	if _, err := (handler{svc: h.svc, functions: endless}).proxy(r); err == nil ||
		!strings.Contains(err.Error(), "larger") {
		t.Errorf("an endless answer: got %v", err)
	}
}

// TestProxyStreamsExports of any length. A broken export does not look complete.
func TestProxyStreamsExports(t *testing.T) {
	t.Parallel()
	broken := errors.New("the connection broke")
	for name, c := range map[string]struct {
		kind string
		body io.Reader
		want error
	}{
		"a long one": {"text/csv; charset=utf-8; header=present", io.LimitReader(zeros{}, maxAnswer+1), nil},
		"one that has ended": {
			"application/x-ndjson", io.MultiReader(strings.NewReader("{}\n"), iotest.ErrReader(broken)),
			broken,
		},
	} {
		closed := false
		header := http.Header{"Content-Type": {c.kind}, "Content-Disposition": {"attachment"}, "Set-Cookie": {"x=y"}}
		in := &http.Response{StatusCode: http.StatusOK, Header: header, Body: watched{c.body, &closed}}
		if !isExport(in) {
			t.Errorf("%s is no export", name)
		}
		out := stream(in)
		if out.ContentType != c.kind || !out.Relayed || out.Header.Get("Content-Disposition") == "" ||
			out.Header.Get("Set-Cookie") != "" {
			t.Errorf("%s: got %+v", name, out)
		}
		if err := out.Stream(t.Context(), io.Discard); !errors.Is(err, c.want) || !closed {
			t.Errorf("%s: got %v, closed %t", name, err, closed)
		}
	}
}

type watched struct {
	io.Reader
	closed *bool
}

func (w watched) Close() error {
	*w.closed = true
	return nil
}

// proxyRejectsChangedUser rejects requests of a page that shows another user or project than the session.
func proxyRejectsChangedUser(t *testing.T, d daemon) {
	p, other := testkit.BorrowProject(t), testkit.BorrowProject(t)
	b := d.signIn(t, p)
	before := d.listed(t, p)
	for shown, want := range map[string]int{
		"": 200, p.UserID + "/" + p.ID: 200, p.UserID + "/" + other.ID: 401,
		other.UserID + "/" + p.ID: 401, "x": 401,
	} {
		a := b.Get(t, apiPath+"/v1/servers?limit=1",
			append([]string{"Cookie", cookieName + "=" + b.cookie, userHeader, shown}, fromPage...)...)
		if a.Status != want || want == 401 && !strings.Contains(string(a.Body), "someone else") {
			t.Errorf("a page of %q: got %d %s, want %d", shown, a.Status, a.Body, want)
		}
	}
	if n := d.listed(t, p) - before; n != 2 {
		t.Errorf("the function got %d requests", n)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// proxyBodies passes bodies of up to 1 MiB, and rejects larger ones.
func proxyBodies(t *testing.T, d daemon) {
	b := d.signIn(t, testkit.BorrowProject(t))
	for size, want := range map[int]int{1 << 20: 400, 1<<20 + 1: 413} {
		a := b.send(t, "POST", apiPath+"/v1/launch", strings.Repeat(" ", size))
		if a.Status != want {
			t.Errorf("%d bytes: got %d %s, want %d", size, a.Status, a.Body, want)
		}
	}
}

// TestProxyWithoutFunctions answers 503 with a row of the console.
func TestProxyWithoutFunctions(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	database := testkit.Database(t)
	// Nothing listens at port 1 of any loopback address; the name is resolved by the system.
	app := testkit.Start(t, testkit.Env(t, database,
		map[string]string{"CONSOLE_UPSTREAM": "http://{function}.localhost:1"}), Function)
	b := signInTo(t, app, password(p, ""))
	a := b.send(t, "GET", apiPath+"/v1/servers", "")
	if a.Status != 503 || a.Header.Get("Retry-After") == "" || !strings.Contains(string(a.Body), "cannot be reached") {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	n := testkit.Scalar[int](t, testkit.Pool(t, database),
		"select count(*)::int from requests where function = 'console' and path = '/console/api/v1/servers' and status = "+
			"503 and request_id = $1",
		a.Header.Get("X-Request-Id"))
	if n != 1 {
		t.Errorf("it has %d rows", n)
	}
}

// daemon is a process with all functions, and its database.
type daemon struct {
	*testkit.Process
	database string
}

func startDaemon(t *testing.T) daemon {
	t.Helper()
	database := testkit.Database(t)
	env := testkit.Env(t, database, map[string]string{"OS_CLOUD": "demo", "STATS_BACKFILL": "1h"})
	return daemon{testkit.Spawn(t, env), database}
}

// signIn returns a browser that is signed in as the project's member.
func (d daemon) signIn(t *testing.T, p *testkit.Project) *browser {
	t.Helper()
	return signInTo(t, d.Client, password(p, ""))
}

// listed returns how many requests for the project's servers its member has sent.
func (d daemon) listed(t *testing.T, p *testkit.Project) int {
	t.Helper()
	return testkit.Scalar[int](t, testkit.Pool(t, d.database),
		"select count(*)::int from requests where function = 'servers' and path = '/v1/servers' and user_id = $1 and "+
			"project_id = $2", p.UserID, p.ID)
}

// TestProxy sends requests through the console to one daemon.
func TestProxy(t *testing.T) {
	t.Parallel()
	d := startDaemon(t)
	for name, test := range map[string]func(*testing.T, daemon){
		"AnswersAsTheAPI": proxyAnswersAsTheAPI, "ReachesOnlyTheAPI": proxyReachesOnlyTheAPI,
		"RejectsChangedUser": proxyRejectsChangedUser, "Bodies": proxyBodies,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, d)
		})
	}
}
