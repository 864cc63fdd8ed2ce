package docs

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// walker runs the commands of a page as a reader does who types them.
type walker struct {
	replace [][2]string       // text of the page, and what the test uses instead
	env     map[string]string // environment of each terminal
	others  []other
	dir     string // where the commands run; "" is the checkout
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
	if w.dir != "" {
		main.run(t, "cd "+w.dir)
	}
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
			if fails := len(s.shows) > 0 && strings.HasPrefix(s.shows[len(s.shows)-1],
				"cloudfn: "); (status != 0) != fails {
				t.Fatalf("%s: it ended with %d\n$ %s\n%s%s", where, status, w.here(s.command), out, w.otherOutput())
			}
			if line := missing(w.all(s.shows), out); line != "" {
				t.Errorf("%s: the output has no line like %q\n$ %s\n%s", where, line, w.here(s.command), out)
			}
		}
	}
	for _, o := range w.others {
		o.await(t)
		o.showsAll(t)
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
	end := time.Now().Add(stepLimit)
	for _, line := range o.shows {
		for missing([]string{line}, o.printed(0)) != "" {
			if time.Now().After(end) {
				t.Fatalf("%s: the output has no line like %q\n%s", o.where, line, o.printed(0))
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
}

// showsAll fails for each event in the other terminal that the page does not show.
func (o other) showsAll(t *testing.T) {
	t.Helper()
	for line := range strings.Lines(o.printed(0)) {
		line = strings.TrimSuffix(line, "\n")
		isShown := func(shown string) bool { return missing([]string{shown}, line) == "" }
		if strings.Contains(line, "  cloudfn.") && !slices.ContainsFunc(o.shows, isShown) {
			t.Errorf("%s: the page does not show the line %q", o.where, line)
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
