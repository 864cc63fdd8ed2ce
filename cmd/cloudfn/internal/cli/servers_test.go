package cli

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// TestWatchedServer judges a server by what is seen of it, look after look.
func TestWatchedServer(t *testing.T) {
	t.Parallel()
	const start, stop, reboot, remove, deploy = api.ServerActionActionStart, api.ServerActionActionStop, api.ServerActionActionReboot, api.ServerActionActionDelete, api.ServerActionActionDeploy
	for name, c := range map[string]struct {
		action  api.ServerActionAction
		seen    []string // statuses; with a state behind a slash of one that is tracked
		through string   // the id of an action through a connection
		want    string
	}{
		"stopped":                       {action: stop, seen: []string{"ACTIVE", "ACTIVE", "SHUTOFF"}, want: "done"},
		"stopped from error":            {action: stop, seen: []string{"ERROR", "ERROR", "SHUTOFF"}, want: "done"},
		"fell into error":               {action: stop, seen: []string{"ACTIVE", "ERROR"}, want: "nova_fault"},
		"in error from the first look":  {action: start, seen: []string{"ERROR"}, want: "nova_fault"},
		"rebooted":                      {action: reboot, seen: []string{"REBOOT", "ACTIVE"}, want: "done"},
		"rebooted hard from error":      {action: reboot, seen: []string{"ERROR/error", "ERROR/error", "ACTIVE/active"}, want: "done"},
		"not started after all":         {action: start, seen: []string{"SHUTOFF/updating", "SHUTOFF/stopped"}, want: "conflict"},
		"not started, and not tracked":  {action: start, seen: []string{"SHUTOFF", "SHUTOFF"}, want: ""},
		"not seen yet, by a connection": {action: start, seen: []string{"SHUTOFF/stopped"}, through: "x", want: ""},
		"deleted":                       {action: remove, seen: []string{"ACTIVE", "DELETED"}, want: "done"},
		"deleted, and can be restored":  {action: remove, seen: []string{"SOFT_DELETED"}, want: "done"},
		"deleted by somebody else":      {action: stop, seen: []string{"ACTIVE", "DELETED"}, want: "not_found"},
		"rebuilt, and no agent yet":     {action: deploy, seen: []string{"REBUILD/updating", "ACTIVE/active"}, want: ""},
		"of no use to wait":             {action: stop, seen: []string{"UNKNOWN/unknown"}, want: ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &watched{outcome: &outcome{ActionID: c.through}, action: c.action}
			for _, text := range c.seen {
				status, state, tracked := strings.Cut(text, "/")
				s := api.Server{Status: status}
				if tracked {
					s.Instance = &api.ServerInstance{State: api.InstanceState(state)}
				}
				w.see(s)
			}
			got := ""
			if w.ended {
				got = "done"
			}
			if w.Error != nil {
				got = string(w.Error.Code)
			}
			if got != c.want {
				t.Errorf("it is judged %q, want %q (%+v)", got, c.want, w.outcome)
			}
		})
	}
}

// TestUntil waits through what passes, and no longer than it may.
func TestUntil(t *testing.T) {
	t.Parallel()
	looks := 0
	err := until(t.Context(), time.Minute, func(context.Context) (bool, error) {
		if looks++; looks < 3 {
			return false, &api.Error{Status: http.StatusServiceUnavailable}
		}
		return true, nil
	}, func() string { return "" })
	if err != nil || looks != 3 {
		t.Errorf("after %d looks: %v", looks, err)
	}
	refused := &api.Error{Status: http.StatusForbidden}
	if err := until(t.Context(), time.Minute, func(context.Context) (bool, error) { return false, refused }, nil); !errors.Is(err, refused) {
		t.Errorf("a refusal ends it with %v", err)
	}
	a := &app{running: true}
	never := func(context.Context) (bool, error) { return false, nil }
	err = until(t.Context(), time.Millisecond, never, func() string { return "web is building" })
	if code := a.code(err); code != exitAway || err.Error() != "not done within 1ms, and it goes on: web is building" {
		t.Errorf("too late gives %d: %v", code, err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errInterrupted)
	err = until(ctx, time.Minute, never, func() string { return "web is building" })
	if code := a.code(err); code != exitInterrupted || !strings.Contains(err.Error(), "goes on (web is building)") {
		t.Errorf("interrupted gives %d: %v", code, err)
	}
}

func listed(names ...string) []api.Item[api.Server] {
	var all []api.Item[api.Server]
	for i, name := range names {
		all = append(all, api.Item[api.Server]{Value: api.Server{ID: string(rune('a'+i)) + "-id", Name: name, Status: "ACTIVE"}})
	}
	return all
}

// TestHandle is a name where that is enough for other commands, and else an id.
func TestHandle(t *testing.T) {
	t.Parallel()
	all := listed("one", "two", "two", "", "4f8052c0-49f2-4b75-a508-5c4454e37731", "with\x1bescape", "of two words", "--flag", "it's", "réseau")
	call := handle(all)
	var got []string
	for _, one := range all {
		got = append(got, call(one.Value))
	}
	if want := []string{"one", "b-id", "c-id", "d-id", "e-id", "f-id", "g-id", "h-id", "i-id", "réseau"}; !slices.Equal(got, want) {
		t.Errorf("they are called %q, want %q", got, want)
	}
}

func TestOffers(t *testing.T) {
	t.Parallel()
	all := listed("one", "two", "two", "three")
	if got, want := offers(all, []string{"d-id"}, ""), []string{"one\tactive", "b-id\ttwo active", "c-id\ttwo active"}; !slices.Equal(got, want) {
		t.Errorf("with nothing typed it offers %q, want %q", got, want)
	}
	if got := offers(all, nil, "a"); !slices.Contains(got, "a-id\tone active") {
		t.Errorf("with something typed it offers %q", got)
	}
}

func TestNamed(t *testing.T) {
	t.Parallel()
	a := &app{running: true}
	all := listed("one", "two", "two")
	if id, err := named(all, "one"); id != "a-id" || err != nil {
		t.Errorf("one is %q, %v", id, err)
	}
	if _, err := named(all, "on"); a.code(err) != exitAbsent {
		t.Errorf("a part of a name gives %v", err)
	}
	if _, err := named(all, "two"); a.code(err) != exitConflict || !strings.Contains(err.Error(), "b-id, c-id") {
		t.Errorf("a name of two gives %v", err)
	}
}

func TestAge(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 10, 12, 0, 0, 0, time.UTC)
	if got := age(time.Time{}, now); got != "" {
		t.Errorf("an age that is not known is %q", got)
	}
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 119 * time.Second: "119s", 2 * time.Minute: "2m", 119 * time.Minute: "119m", 47 * time.Hour: "47h", 48 * time.Hour: "2d",
	} {
		if got := age(now.Add(-d), now); got != want {
			t.Errorf("%s is %q, want %q", d, got, want)
		}
	}
}

func TestPast(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 10, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"1h": now.Add(-time.Hour), "90m": now.Add(-90 * time.Minute), "7d": now.AddDate(0, 0, -7),
		"2026-01-02T03:04:05+01:00": time.Date(2026, 1, 2, 2, 4, 5, 0, time.UTC),
	} {
		if got, err := past(text, now); err != nil || !got.Equal(want) {
			t.Errorf("%s is %s, %v", text, got, err)
		}
	}
	for _, text := range []string{"-1h", "1", "xd", "-1d", "2026-01-02"} {
		if _, err := past(text, now); (&app{running: true}).code(err) != exitUsage {
			t.Errorf("%s gives %v", text, err)
		}
	}
}

// TestLocale draws in blocks only where the first variable that decides says so.
func TestLocale(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"": false, "LANG=C": false, "LANG=de_DE.UTF-8": true, "LANG=C.utf8": true, "LC_ALL=C LANG=de_DE.UTF-8": false, "LC_CTYPE=C.UTF-8 LANG=C": true,
	} {
		env := func(name string) (string, bool) {
			for pair := range strings.FieldsSeq(text) {
				if value, ok := strings.CutPrefix(pair, name+"="); ok {
					return value, true
				}
			}
			return "", false
		}
		if got := utf8Locale(env); got != want {
			t.Errorf("%q gives %t", text, got)
		}
	}
}

// TestReplaceFile leaves a whole file, keeps its mode, follows a link, and writes to what is no file.
func TestReplaceFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, link := filepath.Join(dir, "chart"), filepath.Join(dir, "link")
	if err := errors.Join(os.WriteFile(file, []byte("old"), 0o600), os.Symlink(file, link)); err != nil {
		t.Fatal(err)
	}
	if err := replaceFile(link, []byte("new")); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	info, _ := os.Lstat(link)
	if was, _ := os.Stat(file); err != nil || string(text) != "new" || was.Mode().Perm() != 0o600 || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the file has %q, %v, %v", text, was.Mode(), err)
	}
	if err := replaceFile(os.DevNull, []byte("new")); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(os.DevNull); err != nil || info.Mode().IsRegular() {
		t.Fatalf("%s is a file now: %v", os.DevNull, err)
	}
	if err := replaceFile(filepath.Join(dir, "nowhere", "chart"), nil); err == nil {
		t.Error("a folder that there is not is no error")
	}
	if left, _ := os.ReadDir(dir); len(left) != 2 {
		t.Errorf("%d files are left", len(left))
	}
}

// TestChartSummary counts what is not known as not known.
func TestChartSummary(t *testing.T) {
	t.Parallel()
	two, zero := 2, 0
	at := func(hour int) time.Time { return time.Date(2026, 1, 2, hour, 0, 0, 0, time.UTC) }
	hours := []api.HourStat{
		{Hour: at(1), Running: &two, Total: &two, Source: api.Rebuilt}, {Hour: at(2), Source: api.Missing}, {Hour: at(3), Running: &zero, Total: &two, Source: api.Sampled},
	}
	want := "last: 0 running (Jan 02 03:00)\npeak: 2 running (Jan 02 01:00)\n1 of 3 hours are rebuilt from Nova's history\n" +
		"1 of 3 hours are missing: how many ran then is not known\n"
	if got := chartSummary(hours); got != want {
		t.Errorf("the summary is\n%s\nwant\n%s", got, want)
	}
	bars := hourBars(hours)
	if bars[0].Annotation != "rebuilt" || !bars[1].Missing || bars[2].Missing || bars[2].Part != 0 || bars[2].All != 2 {
		t.Errorf("the bars are %+v", bars)
	}
	if got := chartSummary([]api.HourStat{{Hour: at(1), Source: api.Missing}}); !strings.HasPrefix(got, "last: not known\n1 of 1") {
		t.Errorf("of nothing it is %q", got)
	}
}

// TestEnds holds that every action that can be waited for leads to a state that is settled.
func TestEnds(t *testing.T) {
	t.Parallel()
	for _, verb := range domain.Actions() {
		if end, ok := ends[api.ServerActionAction(verb)]; !ok || !slices.Contains(settled, end) {
			t.Errorf("%s ends in %q", verb, end)
		}
	}
}
