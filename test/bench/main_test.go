//go:build bench

package bench

import (
	"cmp"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(exporterEnv); url != "" {
		os.Exit(exporterMain(url)) // this binary, started once more as the peer of the counting measurement
	}
	if url := os.Getenv(floodEnv); url != "" {
		os.Exit(floodMain(url)) // the strangers of the flood
	}
	if rows := os.Getenv("ROWS"); rows != "" {
		tests, err := testsOf(rows)
		if err == nil {
			err = flag.Set("test.run", tests)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
	}
	before := conditions()
	code := m.Run()
	testkit.RemoveBinary()
	fmt.Print(before)
	fmt.Printf("At the end the load was %s.\n\n", load())
	printResults(os.Stdout)
	printWays(os.Stdout)
	os.Exit(code)
}

// conditions is what a reader must know to judge the numbers.
func conditions() string {
	var s strings.Builder
	fmt.Fprintf(&s, "%s, %s, %d cores of %s\n", time.Now().UTC().Format(time.RFC3339), runtime.Version(),
		runtime.NumCPU(), cpu())
	version, err := exec.Command("psql", "--version").Output()
	if err == nil {
		fmt.Fprintf(&s, "%s, fsync on\n", strings.TrimSpace(string(version)))
	}
	fmt.Fprintf(&s, "Load of the machine before the run: %s (1, 5, 15 minutes). ", load())
	return s.String()
}

func cpu() string {
	info, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(info)) {
		if name, ok := strings.CutPrefix(line, "model name"); ok {
			return strings.Trim(name, "\t :\n")
		}
	}
	return "an unknown processor"
}

func load() string {
	text, _ := os.ReadFile("/proc/loadavg")
	fields := strings.Fields(string(text))
	return strings.Join(fields[:min(3, len(fields))], " ")
}

// result is one line of the table.
type result struct {
	number string // of the measurement; the table is in the order of these
	name   string
	ours   string
	peer   string  // what it is held against: somebody else's way, or a limit
	ratio  float64 // ours : peer
	target target
}

// line is the number without its letter.
func (r result) line() (n int) {
	_, _ = fmt.Sscanf(r.number, "%d", &n)
	return n
}

// target is what the ratio should be. It is judged, and nothing fails by it.
type target struct {
	bound   float64
	atLeast bool
}

func atLeast(bound float64) target { return target{bound: bound, atLeast: true} }
func atMost(bound float64) target  { return target{bound: bound} }

// shown is for a line that has no target.
var shown = target{}

func (t target) String() string {
	switch {
	case t == shown:
		return "-"
	case t.atLeast:
		return ">= " + times(t.bound)
	}
	return "<= " + times(t.bound)
}

func (t target) verdict(ratio float64) string {
	switch {
	case t == shown:
		return "-"
	case t.atLeast && ratio >= t.bound, !t.atLeast && ratio <= t.bound:
		return "ok"
	}
	return "MISSED"
}

// times writes a ratio: 4.6x, or 1/17 when it is that small.
func times(ratio float64) string {
	switch {
	case ratio <= 0:
		return "-"
	case ratio < 0.01:
		return fmt.Sprintf("1/%.0f", 1/ratio)
	case ratio < 0.4:
		return fmt.Sprintf("1/%.1f", 1/ratio)
	}
	return fmt.Sprintf("%.2fx", ratio)
}

var results []result

// report adds a line to the table, and prints it: a run that is ended shows what it has measured.
func report(r result) {
	results = append(results, r)
	fmt.Printf("%s  %s: %s, %s: %s (target %s: %s)\n", r.number, r.name, r.ours, r.peer, times(r.ratio), r.target,
		r.target.verdict(r.ratio))
}

// measured are the lines of the table that each test reports.
var measured = map[string][]string{
	"TestRequestLog": {"1a", "1b", "1c", "1d"},
	"TestToken":      {"2a", "2b"},
	"TestProxy":      {"3"},
	"TestDecode":     {"4a", "4b", "4c"},
	"TestCount":      {"5"},
	"TestOutage":     {"5b"},
	"TestWays":       {"6"},
	"TestStart":      {"7a", "7b"},
	"TestIdle":       {"7c"},
	"TestPoll":       {"8"},
	"TestCallbacks":  {"9a", "9b"},
	"TestPause":      {"9c"},
	"TestCLI":        {"10a", "10b"},
	"TestRound":      {"11"},
	"TestRemote":     {"12"},
	"TestLeases":     {"13a", "13b"},
	"TestManyLeases": {"13c"},
	"TestDueLeases":  {"13d", "13e"},
	"TestLeaseStart": {"13f"},
	"TestNodes":      {"14a", "14b", "14c", "14d"},
	"TestManaged":    {"15a", "15b"},
	"TestSeries":     {"16"},
	"TestFlood":      {"17a", "17b"},
}

// testsOf returns the pattern of the tests that report the lines: 13c, or all of 13.
func testsOf(rows string) (string, error) {
	var tests []string
	for row := range strings.FieldsSeq(strings.ReplaceAll(rows, ",", " ")) {
		found := false
		for test, numbers := range measured {
			is := func(n string) bool { return n == row || strings.TrimRight(n, "abcdef") == row }
			if slices.ContainsFunc(numbers, is) {
				tests, found = append(tests, test), true
			}
		}
		if !found {
			return "", fmt.Errorf("ROWS: unknown line %q; README.md lists them, such as 13 or 13c", row)
		}
	}
	return "^(" + strings.Join(tests, "|") + ")$", nil
}

// TestRows: each test here is chosen by its lines.
func TestRows(t *testing.T) {
	files, err := filepath.Glob("*_test.go")
	must(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		must(t, err)
		for _, found := range regexp.MustCompile(`(?m)^func (Test\w+)\(t `).FindAllSubmatch(text, -1) {
			if name := string(found[1]); measured[name] == nil && name != "TestRows" {
				t.Errorf("no row of the table chooses %s", name)
			}
		}
	}
	for rows, want := range map[string]string{"13c": "^(TestManyLeases)$", "5b,6": "^(TestOutage|TestWays)$"} {
		if got, err := testsOf(rows); err != nil || got != want {
			t.Errorf("%s: got %s, %v; want %s", rows, got, err, want)
		}
	}
	if got, err := testsOf("13"); err != nil || strings.Count(got, "|") != 3 {
		t.Errorf("13: got %s, %v", got, err)
	}
	if _, err := testsOf("13z"); err == nil {
		t.Error("an unknown line is accepted")
	}
}

func printResults(w io.Writer) {
	slices.SortStableFunc(results, func(a, b result) int {
		return cmp.Or(cmp.Compare(a.line(), b.line()), cmp.Compare(a.number, b.number))
	})
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tab, "\twhat\tours\tpeer or limit\tours:peer\ttarget\tverdict")
	for _, r := range results {
		fmt.Fprintf(tab, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.number, r.name, r.ours, r.peer, times(r.ratio), r.target,
			r.target.verdict(r.ratio))
	}
	_ = tab.Flush()
	fmt.Fprintln(w, footnote)
}

const footnote = `
5: the fake Nova answers at once, so this is our work and the peer's alone. What Nova works for each of the pages
comes on top: 6, and the table below.`
