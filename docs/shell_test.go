package docs

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// patience is the longest time that a step may take on a busy machine.
const patience = 10 * time.Minute

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
	for limit := time.Now().Add(patience); syscall.Kill(group, 0) == nil; time.Sleep(50 * time.Millisecond) {
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
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
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
	`(whsec_|gAAAA|v1,)[A-Za-z0-9+/=_-]+|\b(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\b|[0-9]+[smhd]\b|[0-9]+|[ \t─-╿▀-▟⠀-⣿]+|-{2,}`)

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

// walker runs the commands of a page as a reader does who types them.
type walker struct {
	replace [][2]string       // text of the page, and what the test uses instead
	env     map[string]string // environment of each terminal
	others  []other
}

// other is a block that keeps running in its own terminal.
type other struct {
	*shell
	where string
	shows []string
}

const background = "<!-- in another terminal -->"

// walk runs the commands of a page in order, and logs the blocks that it does not run.
func (w *walker) walk(t *testing.T, page string) {
	t.Helper()
	main := open(t, w.env)
	ran := 0
	for _, b := range blocks(t, page) {
		where := fmt.Sprintf("%s:%d", page, b.line)
		if b.language != "sh" && b.language != "console" {
			continue
		}
		if b.notRun != "" {
			t.Logf("%s is not run: %s", where, b.notRun)
			continue
		}
		if b.background {
			w.leave(t, where, b.steps())
			continue
		}
		for _, s := range b.steps() {
			ran++
			out, status := main.run(t, w.here(s.command))
			if fails := len(s.shows) > 0 && strings.HasPrefix(s.shows[len(s.shows)-1], "cloudfn: "); (status != 0) != fails {
				t.Fatalf("%s: it ended with %d\n$ %s\n%s%s", where, status, w.here(s.command), out, w.otherOutput())
			}
			if line := missing(w.all(s.shows), out); line != "" {
				t.Errorf("%s: the output has no line like %q\n$ %s\n%s", where, line, w.here(s.command), out)
			}
		}
	}
	for _, o := range w.others {
		o.await(t)
	}
	if ran == 0 {
		t.Errorf("%s has no command that is run", page)
	}
}

// leave runs commands in a new terminal. It returns when the last command, which keeps running, has printed the first
// line that the page shows.
func (w *walker) leave(t *testing.T, where string, commands []step) {
	t.Helper()
	o := other{shell: open(t, w.env), where: where, shows: w.all(commands[len(commands)-1].shows)}
	for _, s := range commands {
		o.give(w.here(s.command), "")
	}
	o.shows = slices.DeleteFunc(o.shows, func(line string) bool { return strings.Trim(line, " .") == "" })
	first := other{shell: o.shell, where: where, shows: o.shows[:min(1, len(o.shows))]}
	first.await(t)
	w.others = append(w.others, o)
}

// await waits until every line that the page shows was printed in the other terminal. Events of different subjects
// have no order, so the lines have none.
func (o other) await(t *testing.T) {
	t.Helper()
	end := time.Now().Add(patience)
	for _, line := range o.shows {
		for missing([]string{line}, o.printed(0)) != "" {
			if time.Now().After(end) {
				t.Fatalf("%s: the output has no line like %q\n%s", o.where, line, o.printed(0))
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
}

// here replaces the values of the page by those of the test.
func (w *walker) here(text string) string {
	for _, r := range w.replace {
		text = strings.ReplaceAll(text, r[0], r[1])
	}
	return text
}

func (w *walker) all(lines []string) []string {
	var here []string
	for _, line := range lines {
		here = append(here, w.here(line))
	}
	return here
}

// otherOutput returns the output of the other terminals, for the message of a failure.
func (w *walker) otherOutput() string {
	var text bytes.Buffer
	for _, o := range w.others {
		fmt.Fprintf(&text, "--- %s\n%s", o.where, o.printed(0))
	}
	return text.String()
}

var cli struct {
	once sync.Once
	dir  string
	err  error
}

// client builds the CLI once and returns its folder.
func client(t *testing.T) string {
	t.Helper()
	cli.once.Do(func() {
		cli.dir = filepath.Join(testkit.Root(), ".local", "bin", fmt.Sprintf("docs.%d", os.Getpid()))
		cmd := exec.Command("go", "build", "-trimpath", "-o", filepath.Join(cli.dir, "cloudfn"), "./cmd/cloudfn")
		cmd.Dir = testkit.Root()
		if out, err := cmd.CombinedOutput(); err != nil {
			cli.err = fmt.Errorf("go build: %w\n%s", err, out)
		}
	})
	if cli.err != nil {
		t.Fatal(cli.err)
	}
	return cli.dir
}
