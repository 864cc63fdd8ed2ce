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
	cfg.Events = 1
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

// TestLimit lets a window's worth through immediately, then the rate, and keeps sources apart.
func TestLimit(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		take   func(*Limits, string) error
		quota  int
		window time.Duration
		detail string
	}{
		"address": {(*Limits).TakeAddress, 200, 100 * time.Second, "at most 200 within 1m40s"},
		"project": {(*Limits).TakeProject, 20, 10 * time.Second, "at most 20 within 10s"},
	} {
		take := tc.take
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, now := limits(t, Config{Address: 2, Project: 2})
			for n := range tc.quota {
				if err := take(l, "192.0.2.1"); err != nil {
					t.Fatalf("request %d: %v", n, err)
				}
			}
			err := apperr.As(take(l, "192.0.2.1"))
			if err.Code != apperr.RateLimited || err.RetryAfter != time.Second || err.Limit == nil ||
				*err.Limit != (apperr.Limit{Name: name, Quota: tc.quota, Window: tc.window}) ||
				!strings.Contains(err.Message, tc.detail) {
				t.Errorf("one more: got %+v", err)
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

func defaults(t *testing.T) Config {
	t.Helper()
	var cfg Config
	if err := envconfig.ProcessWith(t.Context(), &envconfig.Config{
		Target: &cfg, Lookuper: envconfig.MapLookuper(nil),
	}); err != nil {
		t.Fatal(err)
	}
	return cfg
}

// TestDefaultsFitHonestClients: a program with 50 parallel calls of a tenth of a second; 300 hosts behind one address
// whose agents report each half minute; and beside them 200 clients that all log in at the same time.
func TestDefaultsFitHonestClients(t *testing.T) {
	t.Parallel()
	l, now := limits(t, defaults(t))
	for tenth := range 6000 { // ten minutes
		arrived := 1
		if tenth == 0 {
			arrived += 200
		}
		for n := range arrived {
			if err := l.TakeAddress("192.0.2.1"); err != nil {
				t.Fatalf("client %d after %d s: %v", n, tenth/10, err)
			}
		}
		for range 50 {
			if err := l.TakeProject("p1"); err != nil {
				t.Fatal(err)
			}
		}
		*now = now.Add(time.Second / 10)
	}
}

// TestDefaultsFitTheLog: an address that floods all functions that serve HTTP, each in a process of its own, does not
// fill a day's REQUESTS_DAILY_MB, and has Keystone validate no more tokens than that.
func TestDefaultsFitTheLog(t *testing.T) {
	t.Parallel()
	const (
		functions = 11
		rowBytes  = 850 // with its indexes
		day       = 24 * time.Hour
		budget    = 10 << 30
	)
	l, now := limits(t, defaults(t))
	rows := 0
	for begin := *now; now.Sub(begin) < day/24; *now = now.Add(time.Second) {
		for l.TakeAddress("192.0.2.1") == nil {
			rows++
		}
	}
	if grown := rows * 24 * rowBytes * functions; grown > budget {
		t.Errorf("%d rows an hour in each function are %.1f GiB a day", rows, float64(grown)/(1<<30))
	}
}

// TestIPv6Network counts a /56 as one source: a client takes another of its networks for each request.
func TestIPv6Network(t *testing.T) {
	t.Parallel()
	l, _ := limits(t, Config{Address: 1, Project: 1})
	for n := range 100 {
		if err := l.TakeAddress(fmt.Sprintf("2001:db8:0:%x::1", n)); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.TakeAddress("2001:db8:0:ff::1"); apperr.CodeOf(err) != apperr.RateLimited {
		t.Errorf("one address more of the network: got %v", err)
	}
	if err := l.TakeAddress("2001:db8:0:100::1"); err != nil {
		t.Errorf("another network: %v", err)
	}
}

// TestMemoryIsBounded by the number of sources that are known at the same time.
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
	err := Config{TrustedProxies: []string{"proxy"}}.Validate()
	if want := `TRUSTED_PROXIES has "proxy": it must be a list`; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
}

// TestInFlight: sources are apart, and leave nothing in memory. A script with 16 requests at a time is within the limit
// of every function.
func TestInFlight(t *testing.T) {
	t.Parallel()
	l, _ := limits(t, Config{Address: 1, Project: 1})
	for name, enter := range map[string]func(string) (func(), error){
		"address-in-flight": l.EnterAddress, "project-in-flight": l.EnterProject,
	} {
		var all []func()
		for n := range 16 {
			leave, err := enter("2001:db8::1")
			if err != nil {
				t.Fatalf("%s: request %d: %v", name, n, err)
			}
			all = append(all, leave)
		}
		_, err := enter("2001:db8::1")
		if e := apperr.As(err); e.Code != apperr.RateLimited || e.RetryAfter != time.Second || e.Limit == nil ||
			*e.Limit != (apperr.Limit{Name: name, Quota: 16}) || !strings.Contains(e.Message, "at most 16 in flight") {
			t.Errorf("%s: got %v", name, err)
		}
		other, err := enter("192.0.2.1")
		if err != nil {
			t.Errorf("%s: another source: %v", name, err)
		}
		all[0]()
		again, err := enter("2001:db8::1")
		if err != nil {
			t.Errorf("%s: after one has ended: %v", name, err)
		}
		for _, leave := range append(all[1:], other, again) {
			leave()
		}
	}
	if n := len(l.addressesInFlight.now) + len(l.projectsInFlight.now); n != 0 {
		t.Errorf("%d sources are in memory", n)
	}
	_, _ = l.EnterAddress("2001:db8::1")
	if n := l.addressesInFlight.now["2001:db8::1"]; n != 0 {
		t.Error("the other addresses of its network count apart")
	}
}
