package obs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cloudfn/cloudfn/shared/domain"
)

type idKey struct{}

func idOf(ctx context.Context) string {
	id, _ := ctx.Value(idKey{}).(string)
	return id
}

// line logs by a logger of the configuration and gives the one line that came of it, without its time.
func line(t *testing.T, cfg Config, log func(*slog.Logger)) map[string]any {
	t.Helper()
	var out bytes.Buffer
	log(slog.New(newHandler(cfg, &out, idOf)))
	if out.Len() == 0 {
		return nil
	}
	var got map[string]any
	dec := json.NewDecoder(&out)
	if err := dec.Decode(&got); err != nil || dec.More() {
		t.Fatalf("no line of JSON: %v", err)
	}
	if _, err := time.Parse(time.RFC3339Nano, got["time"].(string)); err != nil {
		t.Error(err)
	}
	delete(got, "time")
	return got
}

// TestLinesSayWhereTheyAreFrom in whatever way they are written.
func TestLinesSayWhereTheyAreFrom(t *testing.T) {
	t.Parallel()
	inRequest := context.WithValue(t.Context(), idKey{}, "req-1")
	for name, tc := range map[string]struct {
		cfg  Config
		log  func(*slog.Logger)
		want map[string]any
	}{
		"in a request": {
			Config{Revision: "servers-00002"},
			func(l *slog.Logger) { l.InfoContext(inRequest, "hello", "n", 1) },
			map[string]any{
				"level": "INFO", "msg": "hello", "n": 1.0, "revision": "servers-00002", "request_id": "req-1",
			},
		},
		"in none": {
			Config{},
			func(l *slog.Logger) { l.Warn("hello", "error", errors.New("why")) },
			map[string]any{"level": "WARN", "msg": "hello", "error": "why"},
		},
		"by a child": {
			Config{Revision: "r"},
			func(l *slog.Logger) { l.With("a", 1).ErrorContext(inRequest, "hello") },
			map[string]any{"level": "ERROR", "msg": "hello", "a": 1.0, "revision": "r", "request_id": "req-1"},
		},
		"below the level": {Config{}, func(l *slog.Logger) { l.DebugContext(inRequest, "hello") }, nil},
		"at the level": {
			Config{LogLevel: slog.LevelDebug},
			func(l *slog.Logger) { l.Debug("hello") },
			map[string]any{"level": "DEBUG", "msg": "hello"},
		},
		"above the level": {Config{LogLevel: slog.LevelError}, func(l *slog.Logger) { l.Warn("hello") }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, line(t, tc.cfg, tc.log)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestSecretsAreRedacted anywhere in a line, and nothing else.
func TestSecretsAreRedacted(t *testing.T) {
	t.Parallel()
	const canary = "canary"
	for _, key := range []string{
		"token", "X-Auth-Token", "x_subject_token", "password", "OS_PASSWORD", "adminPassword", "secret",
		"callback_secret", "Authorization",
		"webhook-signature", "user_data", "User-Data", "application_credential_secret",
	} {
		for name, log := range map[string]func(*slog.Logger){
			"an attribute": func(l *slog.Logger) { l.Info("x", key, canary) },
			"of a child":   func(l *slog.Logger) { l.With(key, canary).Info("x") },
			"in a group":   func(l *slog.Logger) { l.Info("x", slog.Group("header", key, canary)) },
			"a group":      func(l *slog.Logger) { l.Info("x", slog.Group(key, "value", canary)) },
			"below one":    func(l *slog.Logger) { l.WithGroup(key).Info("x", "value", canary) },
			"bytes":        func(l *slog.Logger) { l.Info("x", key, []string{canary}) },
			"of our type":  func(l *slog.Logger) { l.Info("x", "harmless", domain.Secret(canary)) },
			"inside":       func(l *slog.Logger) { l.Info("x", "harmless", struct{ S domain.Secret }{canary}) },
		} {
			got := line(t, Config{}, log)
			if text, _ := json.Marshal(got); strings.Contains(string(text), canary) ||
				!strings.Contains(string(text), "[redacted]") {
				t.Errorf("%s, %s: the line is %s", key, name, text)
			}
		}
	}
	got := line(t, Config{}, func(l *slog.Logger) {
		l.Info("a token was refused", "user_id", "u", "path", "/v1/servers", "code", "unauthenticated", "key_name", "k")
	})
	want := map[string]any{
		"level": "INFO", "msg": "a token was refused", "user_id": "u", "path": "/v1/servers",
		"code": "unauthenticated", "key_name": "k",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
