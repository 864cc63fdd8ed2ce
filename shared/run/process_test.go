package run

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/google/go-cmp/cmp"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/eventx"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

// TestMain registers a function of each kind, as the folders under functions do.
func TestMain(m *testing.M) {
	HTTP("things", func(cfg small, _ Deps) ([]httpx.Route, error) {
		if cfg.Limit == 0 {
			return nil, errors.New("no limit")
		}
		return []httpx.Route{httpx.Handle("GET /v1/things", func(*http.Request) (string, error) { return "", nil })}, nil
	})
	Event("tick-things", Minutely, func(struct{}, Deps) (eventx.Func, error) {
		return func(context.Context, cloudevents.Event) error { return nil }, nil
	})
	Event("tick-more", Minutely, func(small, Deps) (eventx.Func, error) {
		return func(context.Context, cloudevents.Event) error { return errors.New("always") }, nil
	})
	m.Run()
}

// process is one whose Postgres and Keystone are away. Start sets the default logger, which the tests share.
func process(t *testing.T, env map[string]string) *Process {
	t.Helper()
	p, err := New(t.Context(), environment(env), Texts{OpenAPI: []byte("openapi: 3.1.0\n")}, io.Discard)
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
		_, err := New(t.Context(), environment(map[string]string{"FUNCTION_TARGET": target}), Texts{}, io.Discard)
		if err == nil || !strings.Contains(err.Error(), "FUNCTION_TARGET") || !strings.Contains(err.Error(), "one of things, tick-more, tick-things") {
			t.Errorf("%q: got %v", target, err)
		}
	}
	if got, err := chosen(""); err != nil || len(got) != 3 {
		t.Errorf("the daemon serves %v, %v", got, err)
	}
	if !slices.Equal(Names(), []string{"things", "tick-more", "tick-things"}) {
		t.Errorf("the names are %v", Names())
	}
	_, err := New(t.Context(), environment(map[string]string{"TEST_LIMIT": "11"}), Texts{}, io.Discard)
	if err == nil || err.Error() != "things: TEST_LIMIT is 11" {
		t.Errorf("a function's mistake: got %v", err)
	}
}

func TestTwoOfOneName(t *testing.T) {
	defer func() {
		if recover() == nil || len(registry) != 3 {
			t.Errorf("there are %d functions", len(registry))
		}
	}()
	HTTP("things", func(struct{}, Deps) ([]httpx.Route, error) { return nil, nil })
}

// TestServesWithEverythingAway: the process says that it serves, what is away, and refuses the rest with 503.
func TestServesWithEverythingAway(t *testing.T) {
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

// TestEventsReachTheirFunction, at the path of its name, and at the root when it runs alone.
func TestEventsReachTheirFunction(t *testing.T) {
	for name, tc := range map[string]struct {
		target, key string
		want        map[string]int // by path
	}{
		"the daemon":          {"", "k", map[string]int{"/events/tick-things": 204, "/events/tick-more": 503, "/events/things": 503, "/events/": 503, "/": 503, "//events/tick-things": 503}},
		"an event function":   {"tick-things", "k", map[string]int{"/events/tick-things": 204, "/": 204, "/events/tick-more": 503, "/v1/things": 503}},
		"an HTTP function":    {"things", "k", map[string]int{"/events/tick-things": 503, "/": 503}},
		"with another key":    {"tick-things", "other", map[string]int{"/": 403, "/events/tick-things": 403}},
		"the daemon's secret": {"", "", map[string]int{"/events/tick-things": 403}}, // it made a key that nobody knows
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
	p, err := New(t.Context(), environment(map[string]string{"FUNCTION_TARGET": "tick-things", "EVENT_KEY": "k"}), Texts{}, io.Discard)
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
	t.Setenv("FUNCTION_TARGET", "nothing")
	t.Setenv("DATABASE_URL", "postgres://u:canary@127.0.0.1:1/x")
	t.Setenv("OS_AUTH_URL", "http://127.0.0.1:1")
	for args, want := range map[string]string{
		"": "FUNCTION_TARGET", "serve": `"serve" is not a command`, "migrate now": "is not a command", "migrate": "migrate: ",
		"gateway": "GATEWAY_UPSTREAM", "gateway now": "there are migrate, check, gateway, keys and trustee", "keys now": "is not a command",
		"trustee": "no service account", "trustee now": "is not a command",
	} {
		err := command(t.Context(), strings.Fields(args), Texts{})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%q: got %v", args, err)
		}
	}
}

func TestVariables(t *testing.T) {
	t.Parallel()
	list := Variables()
	seen := map[string]Variable{}
	for _, v := range list {
		if _, twice := seen[v.Name]; twice || v.Name == "" {
			t.Errorf("%q is listed twice", v.Name)
		}
		seen[v.Name] = v
	}
	for name, want := range map[string]Variable{
		"PORT":             {"PORT", "8080", nil},
		"OS_CLOUD":         {"OS_CLOUD", "", nil},
		"TEST_PAUSE":       {"TEST_PAUSE", "1m", []string{"things", "tick-more"}},
		"GATEWAY_UPSTREAM": {"GATEWAY_UPSTREAM", "", []string{"gateway"}},
	} {
		if diff := cmp.Diff(want, seen[name]); diff != "" {
			t.Error(diff)
		}
	}
	if diff := cmp.Diff([]string{"tick-more", "tick-things"}, EventNames()); diff != "" {
		t.Error(diff)
	}
}
