package run

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/google/go-cmp/cmp"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/eventx"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

// tested are functions of each kind, as the folders under functions declare them.
var tested = []function{things.declared(), tickThings.declared(), tickMore.declared()}

// thing serves things. Only a built one has a limit.
type thing struct{ limit int }

func (th *thing) get(*http.Request) (int, error) { return th.limit, nil }

var things = HTTP[small, *thing]{
	Name: "things",
	Build: func(cfg small, _ Deps) (*thing, error) {
		if cfg.Limit == 0 {
			return nil, errors.New("no limit")
		}
		return &thing{cfg.Limit}, nil
	},
	Routes: func(th *thing) []httpx.Route { return []httpx.Route{httpx.Handle("GET /v1/things", th.get)} },
}

var tickThings = Event[struct{}]{
	Name: "tick-things", Schedule: Minutely,
	Build: func(struct{}, Deps) (eventx.Func, error) {
		return func(context.Context, cloudevents.Event) error { return nil }, nil
	},
}

var tickMore = Event[small]{
	Name: "tick-more", Due: []string{"select now()"},
	Build: func(small, Deps) (eventx.Func, error) {
		return func(context.Context, cloudevents.Event) error { return errors.New("always") }, nil
	},
}

// process is one whose Postgres and Keystone are unavailable. Start sets the default logger, which the tests share.
func process(t *testing.T, env map[string]string) *Process {
	t.Helper()
	p, err := newProcess(t.Context(), environment(env), Texts{OpenAPI: []byte("openapi: 3.1.0\n")}, io.Discard, tested)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close(context.Background()) })
	return p
}

func (p *Process) try(t *testing.T, r *http.Request) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	p.Handler().ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

func ping(t *testing.T, path string, key domain.Secret) *http.Request {
	t.Helper()
	r, err := cloudevents.NewHTTPRequestFromEvent(t.Context(), "http://x"+path, eventx.Ping("x", key, time.Now()))
	if err != nil {
		t.Fatal(err)
	}
	r.Body = http.NoBody
	return r
}

func TestUnknownTarget(t *testing.T) {
	for _, target := range []string{"thing", "things ", "Things", "tick", "*"} {
		_, err := newProcess(t.Context(), environment(map[string]string{"FUNCTION_TARGET": target}), Texts{},
			io.Discard, tested)
		if err == nil || !strings.Contains(err.Error(), "FUNCTION_TARGET") ||
			!strings.Contains(err.Error(), "one of things, tick-more, tick-things") {
			t.Errorf("%q: got %v", target, err)
		}
	}
	if got, err := chosen(tested, ""); err != nil || len(got) != 3 {
		t.Errorf("the daemon serves %v, %v", got, err)
	}
	_, err := newProcess(t.Context(), environment(map[string]string{"TEST_LIMIT": "11"}), Texts{}, io.Discard, tested)
	if err == nil || err.Error() != "things: TEST_LIMIT is 11" {
		t.Errorf("a function's mistake: got %v", err)
	}
}

// TestServesWithEverythingUnavailable: the process says that it serves, what is unavailable, and refuses the rest with
// 503.
func TestServesWithEverythingUnavailable(t *testing.T) {
	p := process(t, nil)
	get := func(path string) (int, string) { return p.try(t, httptest.NewRequest(http.MethodGet, path, nil)) }
	if code, body := get("/healthz"); code != 200 || body != "ok\n" {
		t.Errorf("healthz: got %d %s", code, body)
	}
	code, body := get("/v1/status")
	var status Status
	if err := json.Unmarshal([]byte(body), &status); err != nil || code != 200 || status.Version == "" {
		t.Errorf("status: got %d %s", code, body)
	}
	for name, d := range map[string]Dependency{"postgres": status.Postgres, "keystone": status.Keystone} {
		if d.Reachable || d.Error == nil || d.Error.Status != 503 {
			t.Errorf("%s is %+v", name, d)
		}
	}
	if strings.Contains(body, "canary") || strings.Contains(body, "127.0.0.1") {
		t.Errorf("status shows too much: %s", body)
	}
	if code, _ := get("/v1/status?x=1"); code != 400 {
		t.Errorf("status with a parameter: got %d", code)
	}
	for _, path := range []string{"/v1/things", "/v1/openapi.yaml", "/", "/nothing"} {
		if code, body := get(path); code != 503 || !strings.Contains(body, `"code":"unavailable"`) {
			t.Errorf("%s: got %d %s", path, code, body)
		}
	}
}

// TestTryAtStart: the log names the settings of the daemon that do not work, without their values.
func TestTryAtStart(t *testing.T) {
	var logs bytes.Buffer
	p, err := newProcess(t.Context(), environment(nil), Texts{}, &logs, tested)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close(context.Background()) })
	p.tryAtStart(t.Context())
	for _, name := range []string{"DATABASE_URL", "OS_AUTH_URL"} {
		if !strings.Contains(logs.String(), `"variable":"`+name+`"`) {
			t.Errorf("%s is not in %s", name, &logs)
		}
	}
	if strings.Contains(logs.String(), "canary") || strings.Count(logs.String(), "a setting does not work") != 2 {
		t.Errorf("the log is %s", &logs)
	}
}

// TestEventsReachTheirFunction, at the path of its name, and at the root when it runs alone.
func TestEventsReachTheirFunction(t *testing.T) {
	for name, tc := range map[string]struct {
		target, key string
		want        map[string]int // by path
	}{
		"the daemon": {
			"", "k", map[string]int{
				"/events/tick-things": 204, "/events/tick-more": 503, "/events/things": 503, "/events/": 503, "/": 503,
				"//events/tick-things": 503,
			},
		},
		"an event function": {
			"tick-things", "k", map[string]int{
				"/events/tick-things": 204, "/": 204, "/events/tick-more": 503, "/v1/things": 503,
			},
		},
		"an HTTP function":    {"things", "k", map[string]int{"/events/tick-things": 503, "/": 503}},
		"with another key":    {"tick-things", "other", map[string]int{"/": 403, "/events/tick-things": 403}},
		"the daemon's secret": {"", "", map[string]int{"/events/tick-things": 403}}, // it made a key that no one knows
	} {
		t.Run(name, func(t *testing.T) {
			p := process(t, map[string]string{"FUNCTION_TARGET": tc.target, "EVENT_KEY": tc.key})
			for path, want := range tc.want {
				if code, body := p.try(t, ping(t, path, "k")); code != want {
					t.Errorf("%s: got %d %s, want %d", path, code, body, want)
				}
			}
		})
	}
	if a, b := process(t, nil).cfg.EventKey, process(t, nil).cfg.EventKey; a == b || len(a) < 16 {
		t.Error("two daemons have one key")
	}
}

// TestTheEndOfTheProcess ends the work of an event that is still going on.
func TestTheEndOfTheProcess(t *testing.T) {
	p, err := newProcess(t.Context(), environment(map[string]string{
		"FUNCTION_TARGET": "tick-things", "EVENT_KEY": "k",
	}), Texts{}, io.Discard, tested)
	if err != nil {
		t.Fatal(err)
	}
	p.events[0].Func = func(ctx context.Context, _ cloudevents.Event) error {
		p.stopEvents()
		<-ctx.Done()
		return ctx.Err()
	}
	if code, _ := p.try(t, ping(t, "/", "k")); code != 503 {
		t.Errorf("got %d", code)
	}
	p.Close(t.Context())
}

func TestCommand(t *testing.T) {
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); strings.HasPrefix(name, "OS_") {
			t.Setenv(name, "") // restores it after the test
			_ = os.Unsetenv(name)
		}
	}
	t.Setenv("FUNCTION_TARGET", "nothing")
	t.Setenv("DATABASE_URL", "postgres://u:canary@127.0.0.1:1/x")
	t.Setenv("OS_AUTH_URL", "http://127.0.0.1:1")
	for args, want := range map[string]string{
		"": "FUNCTION_TARGET", "serve": `unknown command "serve"`, "migrate now": "unknown command",
		"migrate": "migrate: ",
		"gateway": "GATEWAY_UPSTREAM", "gateway now": "`cloudfnd --help` lists the commands",
		"keys now": "unknown command",
		"trustee":  "no service account", "trustee now": "unknown command",
	} {
		err := command(t.Context(), strings.Fields(args), Texts{}, tested)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%q: got %v", args, err)
		}
	}
}

// TestDescribe lists functions and routes by name, and each variable once, without building anything.
func TestDescribe(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if err := printDescription(&out, tested); err != nil {
		t.Fatal(err)
	}
	var got Description
	if err := json.Unmarshal([]byte(out.String()), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Functions) != 3 || got.Functions[0].Name != "things" || len(got.Functions[1].Due) != 1 {
		t.Errorf("the functions are %+v", got.Functions)
	}
	want := []string{
		"GET /healthz", "GET /v1/docs", "GET /v1/docs/{file}", "GET /v1/openapi.yaml", "GET /v1/status",
		"GET /v1/things",
		"POST /events/tick-more", "POST /events/tick-things",
	}
	if diff := cmp.Diff(want, got.Routes); diff != "" {
		t.Error(diff)
	}
	seen := map[string]Variable{}
	for _, v := range got.Variables {
		if _, twice := seen[v.Name]; twice || v.Name == "" {
			t.Errorf("%q is listed twice", v.Name)
		}
		seen[v.Name] = v
	}
	for name, want := range map[string]Variable{
		"PORT":             {"PORT", "8080", "", nil},
		"OS_CLOUD":         {"OS_CLOUD", "", "", nil},
		"TEST_PAUSE":       {"TEST_PAUSE", "1m", "1s to 1h", []string{"things", "tick-more"}},
		"GATEWAY_UPSTREAM": {"GATEWAY_UPSTREAM", "", "", []string{"gateway"}},
	} {
		if diff := cmp.Diff(want, seen[name]); diff != "" {
			t.Error(diff)
		}
	}
}

// TestPublicAuthURL: a 401 names Keystone's URL as callers reach it, and a wrong one is rejected.
func TestPublicAuthURL(t *testing.T) {
	t.Parallel()
	for text, isGood := range map[string]bool{
		"": true, "https://keystone.example.com/v3": true, "http://10.0.0.1:5000": true, "keystone.example.com": false,
		"ftp://keystone.example.com": false, "https://u:p@keystone.example.com": false, "https://a\" b": false,
	} {
		if err := (Config{PublicAuthURL: text}).validatePublicURL(); (err == nil) != isGood {
			t.Errorf("%q: %v", text, err)
		}
	}
}
