package webhook

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

var loopback = Ranges{Allow: []string{"127.0.0.0/8", "::1"}}

func testClient(t *testing.T, cfg Config, resolver *net.Resolver) *Client {
	t.Helper()
	if cfg.Origin == "" {
		cfg.Origin = "events.example.com"
	}
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	client, err := newClient(cfg, resolver, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.http.CloseIdleConnections)
	return client
}

func anEvent(seq int) cloudevents.Event {
	e := cloudevents.NewEvent()
	e.SetID(fmt.Sprintf("0f8fad5b-d9cb-469f-a165-70867728950e:%d", seq))
	e.SetType(domain.InstanceEvent)
	e.SetSource("cloudfn")
	e.SetSubject("0f8fad5b-d9cb-469f-a165-70867728950e")
	e.SetTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	e.SetExtension("sequence", fmt.Sprintf("%020d", seq))
	_ = e.SetData(cloudevents.ApplicationJSON, map[string]any{
		"state": "active", "name": "a ✓ b", "previous_state": "building",
	})
	return e
}

func receiver(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return server.URL
}

// TestTheStandardWebhooksLibraryVerifies what was signed with one secret and with two.
func TestTheStandardWebhooksLibraryVerifies(t *testing.T) {
	t.Parallel()
	client := testClient(t, Config{Ranges: loopback, Timeout: 5 * time.Second}, nil)
	old, current, other := NewSecret(), NewSecret(), NewSecret()
	type seen struct {
		header http.Header
		body   []byte
	}
	got := make(chan seen, 1)
	url := receiver(t, func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- seen{r.Header, body}
	})
	verifies := func(s seen, secret domain.Secret) bool {
		wh, err := standardwebhooks.NewWebhook(secret.Reveal())
		if err != nil {
			t.Fatal(err)
		}
		return wh.Verify(s.body, s.header) == nil
	}
	for _, secrets := range [][]domain.Secret{{current}, {current, old}} {
		answer, err := client.Send(t.Context(), url+"/hook?token=x", secrets, anEvent(1), time.Now())
		if err != nil || !answer.OK() || answer.Problem() != "" {
			t.Fatalf("%+v %v", answer, err)
		}
		s := <-got
		if !verifies(s, current) || verifies(s, old) != (len(secrets) == 2) || verifies(s, other) {
			t.Errorf("signed with %d secrets: %v", len(secrets), s.header)
		}
		s.body[0] ^= 1
		if verifies(s, current) {
			t.Error("another body verifies too")
		}
		if id := s.header.Get("webhook-id"); id != anEvent(1).ID() || s.header.Get("Ce-Id") != id ||
			s.header.Get("Origin") != "events.example.com" {
			t.Errorf("headers are %v", s.header)
		}
	}
	// The time is the attempt's: an old attempt is refused by the library.
	if _, err := client.Send(t.Context(), url, []domain.Secret{current}, anEvent(1),
		time.Now().Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	if s := <-got; verifies(s, current) {
		t.Error("an attempt of an hour ago verifies")
	}
}

// TestThePlainSDKReceives an event as it was, and its handler of OPTIONS consents.
func TestThePlainSDKReceives(t *testing.T) {
	t.Parallel()
	client := testClient(t, Config{Ranges: loopback, Timeout: 5 * time.Second}, nil)
	for _, origin := range []string{"*", "events.example.com"} {
		rate := 120
		protocol, err := cehttp.New(cehttp.WithDefaultOptionsHandlerFunc([]string{"POST"}, rate, []string{origin},
			false))
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan cloudevents.Event, 1)
		handler, err := cloudevents.NewHTTPReceiveHandler(t.Context(), protocol, func(e cloudevents.Event) { got <- e })
		if err != nil {
			t.Fatal(err)
		}
		url := receiver(t, func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodOptions {
				protocol.OptionsHandlerFn(w, r) // as the SDK's own StartReceiver does
				return
			}
			handler.ServeHTTP(w, r)
		})
		consent, err := client.Handshake(t.Context(), url)
		if err != nil || !consent.Given || consent.Rate != rate || consent.Status != 200 {
			t.Errorf("allowing %s: %+v %v", origin, consent, err)
		}
		answer, err := client.Send(t.Context(), url, []domain.Secret{NewSecret()}, anEvent(7), time.Now())
		if err != nil || !answer.OK() {
			t.Fatalf("%+v %v", answer, err)
		}
		want := anEvent(7)
		if e := <-got; e.String() != want.String() {
			t.Errorf("got\n%s\nwant\n%s", e, want)
		}
	}
	strict, _ := cehttp.New(cehttp.WithDefaultOptionsHandlerFunc([]string{"POST"}, 1, []string{"another.example"},
		false))
	if consent, err := client.Handshake(t.Context(), receiver(t, strict.OptionsHandlerFn)); err != nil ||
		consent.Given || consent.Status != 400 {
		t.Errorf("a receiver that allows another: %+v %v", consent, err)
	}
}

func TestConsent(t *testing.T) {
	t.Parallel()
	client := testClient(t, Config{Ranges: loopback, Timeout: 5 * time.Second}, nil)
	for name, tc := range map[string]struct {
		status       int
		origin, rate string
		given        bool
		allowed      int
	}{
		"our name":            {204, "Events.Example.COM", "60", true, 60},
		"everybody":           {200, "*", "*", true, 0},
		"no rate":             {200, "*", "", true, 0},
		"a rate of nonsense":  {200, "*", "-5", true, 0},
		"a rate we never use": {200, "*", "100000000000000000000", true, 0},
		"no header":           {200, "", "60", false, 60},
		"another's name":      {200, "example.com", "60", false, 60},
		"a list":              {200, "events.example.com, *", "60", false, 60},
		"a refusal":           {403, "*", "", false, 0},
		"a redirect":          {301, "*", "", false, 0},
		"gone":                {410, "*", "", false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := receiver(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodOptions || r.Header.Get("WebHook-Request-Origin") != "events.example.com" ||
					r.Header.Get("WebHook-Request-Rate") == "" {
					t.Errorf("%s with %v", r.Method, r.Header)
				}
				w.Header()["WebHook-Allowed-Origin"] = []string{tc.origin}
				w.Header()["WebHook-Allowed-Rate"] = []string{tc.rate}
				w.WriteHeader(tc.status)
			})
			consent, err := client.Handshake(t.Context(), url)
			if err != nil || consent.Given != tc.given || consent.Rate != tc.allowed || consent.Status != tc.status ||
				consent.Gone() != (tc.status == 410) {
				t.Errorf("got %+v %v", consent, err)
			}
		})
	}
}

func TestConfigsThatCannotWork(t *testing.T) {
	t.Parallel()
	good := Config{Timeout: time.Second, Origin: "cloudfn"}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for variable, change := range map[string]func(*Config){
		"CALLBACK_ORIGIN": func(c *Config) { c.Origin = "https://x" },
		"CALLBACK_ALLOW":  func(c *Config) { c.Allow = []string{"x"} }, "CALLBACK_DENY": func(c *Config) {
			c.Deny = []string{"x"}
		},
	} {
		cfg := good
		change(&cfg)
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), variable) {
			t.Errorf("%s: %v", variable, err)
		}
	}
}

func TestSecrets(t *testing.T) {
	t.Parallel()
	encode := func(n int) string { return base64.StdEncoding.EncodeToString(make([]byte, n)) }
	for _, text := range []string{
		"whsec_" + encode(24), "whsec_" + encode(64), "whsec_" + encode(25), NewSecret().Reveal(),
	} {
		if err := CheckSecret(domain.Secret(text)); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	for _, text := range []string{
		"", "whsec_", encode(32), "whsec_" + encode(23), "whsec_" + encode(65), "whsec_" + encode(24) + "=",
		"whsec_" + encode(24) + "\n", "WHSEC_" + encode(24), "whsec_" + strings.Repeat("-_", 20),
	} {
		err := CheckSecret(domain.Secret(text))
		if e := apperr.As(err); err == nil || len(e.Fields) != 1 || e.Fields[0].Field != "secret" || len(text) > 10 &&
			strings.Contains(err.Error(), text) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if a, b := NewSecret(), NewSecret(); a == b {
		t.Error("two secrets are the same")
	}
	client := testClient(t, Config{Ranges: loopback, Timeout: time.Second}, nil)
	for _, secrets := range [][]domain.Secret{nil, {"canary"}} {
		if _, err := client.Send(t.Context(), "http://127.0.0.1:1", secrets, anEvent(1),
			time.Now()); apperr.CodeOf(err) != apperr.Internal || strings.Contains(err.Error(), "canary") {
			t.Errorf("%d secrets: %v", len(secrets), err)
		}
	}
}

// TestProbe has a row for what a status URL may answer: only 200 says that a host serves.
func TestProbe(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		answer http.HandlerFunc
		url    string
		ranges Ranges
		want   string // in the error; "" = it serves
	}{
		"200": {answer: func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodGet || r.URL.Path != "/up" {
				w.WriteHeader(http.StatusTeapot)
			}
		}, ranges: loopback},
		"204": {
			answer: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) },
			ranges: loopback, want: "the answer is 204",
		},
		"503": {
			answer: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) },
			ranges: loopback, want: "the answer is 503",
		},
		"a redirect": {
			answer: func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/other", http.StatusFound) },
			ranges: loopback, want: "the answer is 302",
		},
		"no answer in time": {
			answer: func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
			ranges: loopback, want: "did not answer in time",
		},
		"an endless answer": {answer: func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusOK)
			for r.Context().Err() == nil {
				_, _ = w.Write(make([]byte, 1<<10))
			}
		}, ranges: loopback},
		"plain http elsewhere": {
			answer: func(http.ResponseWriter, *http.Request) { t.Error("called") }, want: "must begin with https",
		},
		"nothing listens":      {url: "http://127.0.0.1:1/up", ranges: loopback, want: "refused"},
		"no URL":               {url: "up", ranges: loopback, want: "url"},
		"a forbidden protocol": {url: "ftp://127.0.0.1/up", ranges: loopback, want: "url"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := testClient(t, Config{Ranges: tc.ranges, Timeout: time.Second}, nil)
			url := tc.url
			if tc.answer != nil {
				url = receiver(t, tc.answer) + "/up"
			}
			err := client.Probe(t.Context(), url)
			got := ""
			if err != nil {
				got = err.Error()
			}
			if (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// nameService is a real name server, of this test's own, that finds what find says.
func nameService(t *testing.T, find func(name string) []netip.Addr) *net.Resolver {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	go func() {
		buf := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			answer(&m, find)
			if out, err := m.Pack(); err == nil {
				conn.WriteTo(out, from)
			}
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

func answer(m *dnsmessage.Message, find func(name string) []netip.Addr) {
	m.Response, m.Authoritative, m.Additionals = true, true, nil
	q := m.Questions[0]
	for _, addr := range find(strings.ToLower(q.Name.String())) {
		header := dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class}
		switch {
		case q.Type == dnsmessage.TypeA && addr.Is4():
			m.Answers = append(m.Answers, dnsmessage.Resource{
				Header: header, Body: &dnsmessage.AResource{A: addr.As4()},
			})
		case q.Type == dnsmessage.TypeAAAA && addr.Is6():
			m.Answers = append(m.Answers, dnsmessage.Resource{
				Header: header, Body: &dnsmessage.AAAAResource{AAAA: addr.As16()},
			})
		}
	}
}
