package nodes

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

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

func runDrain(t *testing.T, a *cli.App) error {
	t.Helper()
	cmd := drain(a)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs([]string{"compute-1", "--wait"})
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
