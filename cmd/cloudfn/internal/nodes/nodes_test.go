package nodes

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/clitest"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
)

// drained is an API whose node has one more server moved at each poll. A real drain takes minutes, and the reason why a
// server stays is up to Nova: test/process has one.
func drained() http.HandlerFunc {
	const node = `{"name": "compute-1", "status": "up", "labels": {}, "drain": {"state": %q, "done": %d, "left": %d,
		"moving": [], "skipped": [{"server_id": "s3", "name": "broken", "reason": "it is in ERROR"}], "servers": [
		{"server_id": "s1", "name": "web", "state": %q, "method": "live", "target": "compute-2"},
		{"server_id": "s2", "name": "db", "state": "pending"},
		{"server_id": "s3", "name": "broken", "state": "skipped", "reason": "it is in ERROR"}]}}`
	polls := 0
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			polls++
		}
		if polls < 2 {
			fmt.Fprintf(w, node, "running", 0, 2, "migrating")
			return
		}
		fmt.Fprintf(w, node, "done", 2, 0, "moved")
	}
}

func runDrain(t *testing.T, a *cli.App, flags ...string) error {
	t.Helper()
	cmd := drain(a)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(append([]string{"compute-1", "--wait"}, flags...))
	return cmd.ExecuteContext(t.Context())
}

// TestDrainInLines prints a line for each change where there is no terminal, and fails when a server stays.
func TestDrainInLines(t *testing.T) {
	t.Parallel()
	a, out, notes := clitest.New(t, drained())
	err := runDrain(t, a)
	if a.Code(err) != exit.Failed || err.Error() != "1 server of compute-1 cannot be moved" {
		t.Errorf("it ends with %v", err)
	}
	for _, want := range []string{
		"compute-1  running  running, 0 of 3 moved, 1 skipped", "web s1  migrating  now on compute-2",
		"compute-1  done  done, 2 of 3 moved, 1 skipped", "web s1  moved", "broken s3  skipped  it is in ERROR",
		"broken s3 stays: it is in ERROR",
	} {
		if !strings.Contains(notes.String(), want) {
			t.Errorf("the notes lack %q:\n%s", want, notes)
		}
	}
	if strings.Contains(notes.String(), "\x1b") || !strings.Contains(out.String(), "s3      broken  skipped") {
		t.Errorf("it prints\n%s\n%s", notes, out)
	}
}

// TestDrainAtTerminal draws a bar, and only what moves.
func TestDrainAtTerminal(t *testing.T) {
	t.Parallel()
	a, _, notes := clitest.New(t, drained())
	a.Env = func(string) (string, bool) { return "", false }
	a.ErrSize = func() (int, int) { return 100, 24 }
	if err := runDrain(t, a); a.Code(err) != exit.Failed {
		t.Errorf("it ends with %v", err)
	}
	text := notes.String()
	for _, want := range []string{"########---------------- 1/3, 1 skipped", "########################", "3/3, 1 skipped"} {
		if !strings.Contains(text, want) {
			t.Errorf("it lacks %q:\n%q", want, text)
		}
	}
	if !strings.Contains(text, "\x1b[2A") || strings.Contains(text, "db s2") {
		t.Errorf("it draws\n%q", text)
	}
}

// TestDrainTimeout: the move of a server always has a limit, so none is wrong usage. It was sent as an empty text,
// which the API rejects.
func TestDrainTimeout(t *testing.T) {
	t.Parallel()
	a, _, _ := clitest.New(t, func(_ http.ResponseWriter, r *http.Request) { t.Errorf("%s %s", r.Method, r.URL) })
	if err := runDrain(t, a, "--server-timeout", "none"); a.Code(err) != exit.Usage ||
		!strings.Contains(err.Error(), "--server-timeout: must be a number with m, h, d or w") {
		t.Errorf("it ends with %v", err)
	}
}

// TestSelfTestShowsProgress: the test takes up to a minute, and says so before it begins.
func TestSelfTestShowsProgress(t *testing.T) {
	t.Parallel()
	var shown string
	a, _, notes := clitest.New(t, nil)
	b, _, _ := clitest.New(t, func(w http.ResponseWriter, _ *http.Request) {
		shown = notes.String()
		fmt.Fprint(w, `{"name": "compute-1", "status": "up", "isolation": "proven", "labels": {}}`)
	})
	a.Client = b.Client
	cmd := selfTest(a)
	cmd.SetArgs([]string{"compute-1"})
	if err := cmd.ExecuteContext(t.Context()); err != nil || !strings.Contains(shown, "compute-1  testing") {
		t.Errorf("it shows %q: %v", shown, err)
	}
}

// TestDrainTerms shows who has begun a drain, and how it is to be.
func TestDrainTerms(t *testing.T) {
	t.Parallel()
	text := func(s string) *string { return &s }
	parallel := 2
	for want, d := range map[string]*api.Drain{
		"":          nil,
		"automatic": {Automatic: true},
		"by alice, 2 at a time, PT10M for each server": {
			RequestedBy: &api.DrainRequester{UserID: "u", UserName: text("alice")}, Parallel: &parallel,
			ServerTimeout: text("PT10M"),
		},
		"by u": {RequestedBy: &api.DrainRequester{UserID: "u"}},
	} {
		if got := drainTerms(d); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestListSaysWhy: the list shows why a host is down, and why it is cordoned.
func TestListSaysWhy(t *testing.T) {
	t.Parallel()
	a, out, _ := clitest.New(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"nodes": [
			{"name": "a", "status": "down", "status_reason": "no report", "disabled_reason": "cloudfn: a disk", "labels": {}},
			{"name": "b", "status": "up", "disabled_reason": "a new kernel", "labels": {}},
			{"name": "c", "status": "up", "labels": {}}], "next": null}`)
	})
	cmd := list(a)
	cmd.SetArgs(nil)
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	for i, want := range []string{"WHY", "no report; cloudfn: a disk", "a new kernel", "-"} {
		if len(lines) != 4 || !strings.HasSuffix(lines[i], "  "+want) {
			t.Errorf("line %d does not end with %q:\n%s", i, want, out)
		}
	}
}

// TestShowAlert says what is on or off.
func TestShowAlert(t *testing.T) {
	t.Parallel()
	for alert, want := range map[bool]string{true: "on: its changes are events", false: "off"} {
		if got := noun.Table.Text("ALERT", api.Node{Alert: alert}); got != want {
			t.Errorf("%t: got %q", alert, got)
		}
	}
}

// TestDrainVanishes: a drain whose host is uncordoned meanwhile is no success.
func TestDrainVanishes(t *testing.T) {
	t.Parallel()
	a, _, _ := clitest.New(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"name": "compute-1", "status": "up", "labels": {}}`)
	})
	if err := runDrain(t, a); a.Code(err) != exit.Failed || !strings.Contains(err.Error(), "uncordoned") {
		t.Errorf("it ends with %v", err)
	}
}
