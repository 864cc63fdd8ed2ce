package docs

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// stepLimit is the longest time that a step may take on a busy machine.
const stepLimit = 10 * time.Minute

// shell is one terminal of a reader: a bash that runs commands one after the other and keeps their variables.
type shell struct {
	cmd   *exec.Cmd
	in    io.Writer
	ended chan struct{}

	mu   sync.Mutex
	text []byte
}

// open starts a shell in the checkout, without the variables of the test that configure a cloud.
func open(t *testing.T, env map[string]string) *shell {
	t.Helper()
	s := &shell{cmd: exec.Command("bash", "--noprofile", "--norc"), ended: make(chan struct{})}
	s.cmd.Dir = testkit.Root()
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // its process group ends with it
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "OS_") && !strings.HasPrefix(v, "CLOUDFN_URL=") {
			s.cmd.Env = append(s.cmd.Env, v)
		}
	}
	for name, value := range env { // the last one counts
		s.cmd.Env = append(s.cmd.Env, name+"="+value)
	}
	var err error
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	s.cmd.Stdout, s.cmd.Stderr = s, s
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = s.cmd.Wait()
		close(s.ended)
	}()
	t.Cleanup(func() { s.end(t) })
	return s
}

// end terminates everything in the terminal, and waits until it has ended.
func (s *shell) end(t *testing.T) {
	group := -s.cmd.Process.Pid
	_ = syscall.Kill(group, syscall.SIGTERM)
	for limit := time.Now().Add(stepLimit); syscall.Kill(group, 0) == nil; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Errorf("the commands do not end on SIGTERM:\n%s", s.printed(0))
			_ = syscall.Kill(group, syscall.SIGKILL)
			break
		}
	}
	<-s.ended
}

// Write collects the output.
func (s *shell) Write(text []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text = append(s.text, text...)
	return len(text), nil
}

// printed returns the output from an offset on.
func (s *shell) printed(from int) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.text[from:])
}

// give sends a command to the shell, with an empty stdin, and then another command.
func (s *shell) give(command, then string) {
	fmt.Fprintf(s.in, "{ %s\n} < /dev/null\n%s\n", command, then)
}

// run runs a command and returns its output and its exit status.
func (s *shell) run(t *testing.T, command string) (out string, status int) {
	t.Helper()
	const mark = "\x1e"
	from := len(s.printed(0))
	s.give(command, `printf '\036%d\036' $?`)
	for end := time.Now().Add(stepLimit); ; time.Sleep(20 * time.Millisecond) {
		parts := strings.Split(s.printed(from), mark)
		if len(parts) == 3 {
			_, _ = fmt.Sscan(parts[1], &status)
			return parts[0], status
		}
		select {
		case <-s.ended:
			t.Fatalf("the shell ended at %s\n%s", command, parts[0])
		default:
		}
		if time.Now().After(end) {
			t.Fatalf("the command does not end: %s\n%s", command, parts[0])
		}
	}
}

// step is a command of a page, and the output that the page shows.
type step struct {
	command string
	shows   []string
}

// steps returns the commands of a block: those behind a prompt, or the whole block without prompts.
func (b block) steps() []step {
	if b.language == "sh" {
		return []step{{command: "set -e\n" + b.text + "set +e"}} // the shell ends at the first one that fails
	}
	var found []step
	for line := range strings.Lines(b.text) {
		line = strings.TrimSuffix(line, "\n")
		last := len(found) - 1
		switch command, isPrompt := strings.CutPrefix(line, "$ "); {
		case isPrompt:
			found = append(found, step{command: command})
		case last >= 0 && len(found[last].shows) == 0 && unfinished(found[last].command):
			found[last].command += "\n" + line
		case last >= 0:
			found[last].shows = append(found[last].shows, line)
		}
	}
	return found
}

// unfinished reports whether a command continues on the next line.
func unfinished(command string) bool {
	return strings.HasSuffix(command, `\`) || strings.Count(command, "'")%2 == 1
}

// varies matches what differs from run to run: ids, times, numbers, secrets, bars and the spaces between
// columns.
var varies = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}|\b[0-9a-f]{32}\b|` +
	`(whsec_|gAAAA|v1,)[A-Za-z0-9+/=_-]+|\b(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\b|` +
	`[0-9]+[smhd]\b|[0-9]+|[ \t─-╿▀-▟⠀-⣿]+|-{2,}`)

// normalize replaces what varies in a line of a page or of an output.
func normalize(line string) string {
	return strings.TrimSpace(varies.ReplaceAllStringFunc(line, func(s string) string {
		if strings.Trim(s, " \t─━-▀▁▂▃▄▅▆▇█") == "" {
			return " "
		}
		return "#"
	}))
}

// missing returns the first line that an output lacks, in order, or "" if it has all. "..." matches anything.
func missing(shows []string, output string) string {
	lines := strings.Split(output, "\n")
	for _, want := range shows {
		if strings.Trim(want, " .") == "" {
			continue
		}
		pattern := regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(normalize(want)), `\.\.\.`, ".*") + "$")
		for {
			if len(lines) == 0 {
				return want
			}
			line := lines[0]
			lines = lines[1:]
			if pattern.MatchString(normalize(line)) {
				break
			}
		}
	}
	return ""
}
