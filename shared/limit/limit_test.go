package limit

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sethvargo/go-envconfig"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

func limits(t *testing.T, cfg Config) (l *Limits, now *time.Time) {
	t.Helper()
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	l, err := New(cfg, 16)
	if err != nil {
		t.Fatal(err)
	}
	clock := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	l.now = func() time.Time { return clock }
	return l, &clock
}

// TestLimit lets ten seconds' worth through at once, then the rate, and keeps sources apart.
func TestLimit(t *testing.T) {
	t.Parallel()
	for name, take := range map[string]func(*Limits, string) error{
		"address": (*Limits).TakeAddress, "project": (*Limits).TakeProject,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, now := limits(t, Config{Address: 2, Project: 2})
			for n := range 20 {
				if err := take(l, "192.0.2.1"); err != nil {
					t.Fatalf("request %d: %v", n, err)
				}
			}
			err := apperr.As(take(l, "192.0.2.1"))
			if err.Code != apperr.RateLimited || err.RetryAfter != time.Second || err.Limit == nil ||
				*err.Limit != (apperr.Limit{Name: name, Quota: 20, Window: 10 * time.Second}) ||
				!strings.Contains(err.Message, "at most 20 within 10s") {
				t.Errorf("request 21: got %+v", err)
			}
			if err := take(l, "192.0.2.2"); err != nil {
				t.Errorf("another source: %v", err)
			}
			*now = now.Add(time.Second)
			for n, want := range []apperr.Code{"", "", apperr.RateLimited} {
				if got := apperr.CodeOf(take(l, "192.0.2.1")); got != want {
					t.Errorf("a second later, request %d: got %q, want %q", n, got, want)
				}
			}
		})
	}
}

// TestDefaultsFitHonestClients: a program with 50 parallel calls of a tenth of a second, and 200 clients behind one
// address that all log in at the same time.
func TestDefaultsFitHonestClients(t *testing.T) {
	t.Parallel()
	var cfg Config
	if err := envconfig.ProcessWith(t.Context(), &envconfig.Config{
		Target: &cfg, Lookuper: envconfig.MapLookuper(nil),
	}); err != nil {
		t.Fatal(err)
	}
	l, now := limits(t, cfg)
	for n := range 200 {
		if err := l.TakeAddress("192.0.2.1"); err != nil {
			t.Fatalf("client %d: %v", n, err)
		}
	}
	for range 6000 { // ten minutes
		for range 50 {
			if err := l.TakeProject("p1"); err != nil {
				t.Fatal(err)
			}
		}
		*now = now.Add(time.Second / 10)
	}
}

// TestIPv6Network counts a /64 as one source: a client takes another of its addresses for each request.
func TestIPv6Network(t *testing.T) {
	t.Parallel()
	l, _ := limits(t, Config{Address: 1, Project: 1})
	for n := range 10 {
		if err := l.TakeAddress(fmt.Sprintf("2001:db8::%x", n)); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.TakeAddress("2001:db8::ffff"); apperr.CodeOf(err) != apperr.RateLimited {
		t.Errorf("the eleventh address of the network: got %v", err)
	}
	if err := l.TakeAddress("2001:db8:0:1::1"); err != nil {
		t.Errorf("another network: %v", err)
	}
}

// TestMemoryIsBounded by the number of sources that are known at once.
func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	l, _ := limits(t, Config{Address: 1, Project: 1})
	for n := range 3 * maxSources {
		if err := l.TakeProject(strconv.Itoa(n)); err != nil {
			t.Fatal(err)
		}
	}
	if n := l.project.limiters.Len(); n != maxSources {
		t.Errorf("%d limiters are in memory", n)
	}
}

func TestClient(t *testing.T) {
	t.Parallel()
	proxies := []string{"10.0.0.0/8", " 192.0.2.7", "fd00::/8"}
	for name, tc := range map[string]struct {
		remote    string
		forwarded []string
		want      string
	}{
		"no proxy":                   {"198.51.100.1:999", nil, "198.51.100.1"},
		"a client's own header":      {"198.51.100.1:999", []string{"203.0.113.9"}, "198.51.100.1"},
		"a proxy":                    {"10.1.1.1:999", []string{"203.0.113.9"}, "203.0.113.9"},
		"a proxy without a header":   {"10.1.1.1:999", nil, "10.1.1.1"},
		"two proxies":                {"192.0.2.7:999", []string{"203.0.113.9, 10.9.9.9"}, "203.0.113.9"},
		"two headers":                {"192.0.2.7:999", []string{"203.0.113.9", "10.9.9.9"}, "203.0.113.9"},
		"a client that writes first": {"10.1.1.1:999", []string{"127.0.0.1, 203.0.113.9"}, "203.0.113.9"},
		"nonsense":                   {"10.1.1.1:999", []string{"203.0.113.9, unknown"}, "10.1.1.1"},
		"a port":                     {"10.1.1.1:999", []string{"203.0.113.9:4711"}, "203.0.113.9"},
		"IPv6":                       {"[fd00::1]:999", []string{"[2001:db8::1]:80"}, "2001:db8::1"},
		"IPv4 in IPv6":               {"[::ffff:10.1.1.1]:999", []string{"::ffff:203.0.113.9"}, "203.0.113.9"},
		"within the process":         {"203.0.113.9", nil, "203.0.113.9"},
		"no address":                 {"@", []string{"203.0.113.9"}, "@"},
	} {
		l, _ := limits(t, Config{Address: 1, Project: 1, TrustedProxies: proxies})
		r := &http.Request{RemoteAddr: tc.remote, Header: http.Header{"X-Forwarded-For": tc.forwarded}}
		if got := l.Client(r); got != tc.want {
			t.Errorf("%s: got %s, want %s", name, got, tc.want)
		}
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	for want, cfg := range map[string]Config{
		"ADDRESS_RATE_LIMIT is 0: it must be 1 to 100000": {Project: 1},
		"PROJECT_RATE_LIMIT is 100001: it must be":        {Address: 1, Project: 100_001},
		`TRUSTED_PROXIES has "proxy": it must be a list`:  {Address: 1, Project: 1, TrustedProxies: []string{"proxy"}},
	} {
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
