package run

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/sethvargo/go-envconfig"

	"github.com/cloudfn/cloudfn/shared/auth"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/limit"
	"github.com/cloudfn/cloudfn/shared/obs"
	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

// environment is the least that a process needs, with changes; "" is a variable that is set to nothing.
func environment(changes map[string]string) envconfig.Lookuper {
	env := map[string]string{
		"DATABASE_URL": "postgres://u:canary@127.0.0.1:1/x", "OS_AUTH_URL": "http://127.0.0.1:1/v3",
	}
	maps.Copy(env, changes)
	return envconfig.MapLookuper(env)
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	want := Config{
		Listen: Listen{Port: "8080", RequestTimeout: time.Minute}, EventTimeout: 5 * time.Minute,
		Postgres:  postgres.Config{URL: "postgres://u:canary@127.0.0.1:1/x", MaxConns: 4},
		OpenStack: openstack.Config{AuthURL: "http://127.0.0.1:1/v3", Interface: "public"},
		Limits:    limit.Config{Address: 10, Project: 500, Events: 12000},
		Callers: auth.Config{
			AccessRulesService: "cloudfn", WriteRoles: []string{"member", "manager", "admin"},
		},
		Logs: obs.Config{},
	}
	for name, changes := range map[string]map[string]string{
		"absent": nil,
		"set to nothing": {
			"FUNCTION_TARGET": "", "HOST": "", "PORT": "", "REQUEST_TIMEOUT": "", "EVENT_TIMEOUT": "", "EVENT_KEY": "",
			"WAKE_URL": "", "DATABASE_MAX_CONNS": "",
			"OS_INTERFACE": "", "OS_REGION_NAME": "", "ALLOWED_PROJECTS": "", "ALLOWED_DOMAINS": "",
			"LOG_LEVEL": "", "K_REVISION": "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := load[Config](t.Context(), environment(changes))
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); err != nil || diff != "" {
				t.Errorf("%v %s", err, diff)
			}
		})
	}
}

// TestMistakesAreNamed by the variable, in one line that shows no secret.
func TestMistakesAreNamed(t *testing.T) {
	t.Parallel()
	for name, value := range map[string]string{
		"REQUEST_TIMEOUT": "soon", "EVENT_TIMEOUT": "5", "DATABASE_MAX_CONNS": "many",
		"LOG_LEVEL":    "LOUD",
		"DATABASE_URL": "postgres://u:canary@db:x/y", "OS_AUTH_URL": "keystone", "OS_INTERFACE": "outside",
		"WAKE_URL": "http://u:canary@{function}",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := load[Config](t.Context(), environment(map[string]string{name: value}))
			if err == nil || !strings.HasPrefix(err.Error(), name) || strings.ContainsAny(err.Error(), "\n") ||
				strings.Contains(err.Error(), "canary") {
				t.Errorf("got %v", err)
			}
		})
	}
	for name, value := range map[string]string{
		"REQUEST_TIMEOUT": "999ms", "EVENT_TIMEOUT": "11m", "DATABASE_MAX_CONNS": "0",
		"ALLOWED_PROJECTS": "a,,b", "ALLOWED_DOMAINS": " ",
		"ADDRESS_RATE_LIMIT": "0", "PROJECT_RATE_LIMIT": "100001", "TRUSTED_PROXIES": "proxy",
	} {
		t.Run(name+" out of bounds", func(t *testing.T) {
			t.Parallel()
			if _, err := load[Config](t.Context(), environment(map[string]string{name: value})); err == nil ||
				!strings.Contains(err.Error(), name) {
				t.Errorf("got %v", err)
			}
		})
	}
	t.Run("nothing set", func(t *testing.T) {
		t.Parallel()
		if _, err := load[Config](t.Context(), envconfig.MapLookuper(nil)); err == nil ||
			!strings.Contains(err.Error(), "DATABASE_URL is empty") {
			t.Errorf("got %v", err)
		}
	})
}

// TestSecretsOfTheConfiguration do not show when it is printed.
func TestSecretsOfTheConfiguration(t *testing.T) {
	t.Parallel()
	cfg, err := load[Config](t.Context(), environment(map[string]string{"EVENT_KEY": "canary-key"}))
	if err != nil || cfg.EventKey.Reveal() != "canary-key" {
		t.Fatalf("got %v", err)
	}
	asJSON, _ := json.Marshal(cfg)
	if text := fmt.Sprintf("%v %+v %#v %s", cfg, cfg, cfg, asJSON); strings.Contains(text, "canary") {
		t.Errorf("it shows: %s", text)
	}
}

func TestScheduleNext(t *testing.T) {
	t.Parallel()
	at := func(text string) time.Time {
		when, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			t.Fatal(err)
		}
		return when
	}
	for _, tc := range []struct {
		schedule  Schedule
		now, want string
	}{
		{Minutely, "2028-02-29T23:59:59.999Z", "2028-03-01T00:00:00Z"},
		{Minutely, "2026-12-31T23:59:30Z", "2027-01-01T00:00:00Z"},
		{Minutely, "2026-01-02T03:04:00Z", "2026-01-02T03:05:00Z"}, // on time: the next minute
		{Minutely, "2026-01-02T03:04:00.001Z", "2026-01-02T03:05:00Z"},
		{Hourly, "2026-12-31T23:59:30Z", "2027-01-01T00:00:00Z"},
		{Hourly, "2026-01-02T03:59:59.999Z", "2026-01-02T04:00:00Z"},
		{Hourly, "2026-01-02T03:00:00Z", "2026-01-02T04:00:00Z"},
		{Minutely, "2026-01-02T03:20:30+05:45", "2026-01-01T21:36:00Z"}, // whatever the replica's time zone is
	} {
		if got := tc.schedule.next(at(tc.now)); !got.Equal(at(tc.want)) {
			t.Errorf("%s: after %s comes %s, want %s", tc.schedule, tc.now, got, tc.want)
		}
	}
}

// small is a function's own configuration, with one inside it.
type small struct {
	Limit int `env:"TEST_LIMIT, default=7" min:"1"`
	Inner struct {
		Pause time.Duration `env:"TEST_PAUSE, default=1m" min:"1s" max:"1h"`
		Most  int           `env:"TEST_MOST, default=100" min:"10" zero:"no limit"`
	}
	Mode   string        `env:"TEST_MODE, default=on" values:"on,off"`
	Level  slog.Level    `env:"TEST_LEVEL, default=INFO"`
	On     bool          `env:"TEST_ON"`
	Period domain.Period `env:"TEST_PERIOD"`
}

// Validate has an opinion.
func (s small) Validate() error {
	if s.Limit > 10 {
		return fmt.Errorf("TEST_LIMIT is %d", s.Limit)
	}
	return nil
}

// TestListenAddress refuses what no socket has, and names the variable.
func TestListenAddress(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{
		"PORT=99999": "PORT is ", "PORT=http": "PORT is ", "PORT=-1": "PORT is ", "PORT=0": "", "HOST=::": "",
		"HOST=999.1.1.1": "HOST is ", "HOST=127.0.0.1:80": "HOST is ", "HOST=localhost": "", "HOST=fe80::1%lo": "",
		"HOST=node-1.example.com": "",
	} {
		name, text, _ := strings.Cut(value, "=")
		_, err := load[Listen](t.Context(), envconfig.MapLookuper(map[string]string{name: text}))
		if (err == nil) != (want == "") || err != nil && !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: got %v", value, err)
		}
	}
}

func TestLoadOfAFunction(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		env  map[string]string
		want string // the error's beginning
	}{
		"defaults": {nil, ""},
		"no number": {
			map[string]string{"TEST_LIMIT": "1.5"}, `TEST_LIMIT is "1.5": it must be a whole number`,
		},
		"inside": {
			map[string]string{"TEST_PAUSE": "60"}, `TEST_PAUSE is "60": it must be a duration such as 30s, 10m or 2h`,
		},
		"a level":  {map[string]string{"TEST_LEVEL": "loud"}, `TEST_LEVEL is "loud": it must be DEBUG, INFO, WARN or`},
		"a switch": {map[string]string{"TEST_ON": "si"}, `TEST_ON is "si": it must be true or false`},
		"a period": {
			map[string]string{"TEST_PERIOD": "1month"},
			`TEST_PERIOD is "1month": it must be an ISO 8601 duration such as PT8H, P2D or P1M`,
		},
		"its own opinion":   {map[string]string{"TEST_LIMIT": "11"}, "TEST_LIMIT is 11"},
		"too little":        {map[string]string{"TEST_LIMIT": "0"}, "TEST_LIMIT is 0: it must be 1 at least"},
		"too short":         {map[string]string{"TEST_PAUSE": "999ms"}, "TEST_PAUSE is 999ms: it must be 1s to 1h"},
		"too long":          {map[string]string{"TEST_PAUSE": "61m"}, "TEST_PAUSE is 1h1m0s: it must be 1s to 1h"},
		"bounds":            {map[string]string{"TEST_MOST": "10", "TEST_MODE": "off"}, ""},
		"no limit":          {map[string]string{"TEST_MOST": "0"}, ""},
		"neither":           {map[string]string{"TEST_MOST": "9"}, "TEST_MOST is 9: it must be 10 or more, or 0 for no"},
		"another text":      {map[string]string{"TEST_MODE": "On"}, "TEST_MODE is On: it must be on or off"},
		"set, and not used": {map[string]string{"OTHER": "x"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := load[small](context.Background(), envconfig.MapLookuper(tc.env))
			if tc.want == "" {
				if err != nil || got.Limit != 7 || got.Inner.Pause != time.Minute {
					t.Errorf("got %+v %v", got, err)
				}
			} else if err == nil || !strings.HasPrefix(err.Error(), tc.want) {
				t.Errorf("got %v", err)
			}
		})
	}
}
