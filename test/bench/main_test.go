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
	"strconv"
	"strings"
	"sync"
	"syscall"
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
	peer   string  // what it is held against: someone else's way, or a limit
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

// compare adds a line to the table.
func compare(number, name string, ours, peer float64, show func(float64) string, goal target) {
	report(result{number, name, show(ours), show(peer), ours / peer, goal})
}

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
5: the fake Nova answers immediately, so this is our work and the peer's alone. What Nova works for each of the pages
comes on top: 6, and the table below.`

// alternate runs every side once per round, forwards and backwards by turns (A B, B A, A B ...), so that what
// drifts on the machine meanwhile hits all of them alike.
func alternate(rounds int, sides ...func()) {
	for range rounds {
		for _, side := range sides {
			side()
		}
		slices.Reverse(sides)
	}
}

func median(values []float64) float64 { return percentile(values, 50) }

func percentile(values []float64, p int) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(len(sorted)*p/100, len(sorted)-1)]
}

// timed is how many milliseconds a call takes.
func timed(call func()) float64 {
	began := time.Now()
	call()
	return ms(time.Since(began))
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// showMS writes milliseconds with three digits that mean something.
func showMS(v float64) string {
	switch {
	case v < 0.1:
		return fmt.Sprintf("%.2f us", v*1000)
	case v < 10:
		return fmt.Sprintf("%.2f ms", v)
	case v < 10_000:
		return fmt.Sprintf("%.0f ms", v)
	}
	return fmt.Sprintf("%.1f s", v/1000)
}

func showMB(v float64) string    { return fmt.Sprintf("%.1f MB", v) }
func showCount(v float64) string { return fmt.Sprintf("%.0f", v) }

// crowd makes n clients call at the same time, each again as soon as it is answered, and gives the time of
// every call in milliseconds and the time of all.
func crowd(clients, calls int, call func() error) (each []float64, all time.Duration, failed error) {
	each = make([]float64, clients*calls)
	errs := make([]error, clients)
	var group sync.WaitGroup
	began := time.Now()
	for c := range clients {
		group.Go(func() {
			for i := range calls {
				var err error
				each[c*calls+i] = timed(func() { err = call() })
				if err != nil {
					errs[c] = err
				}
			}
		})
	}
	group.Wait()
	all = time.Since(began)
	for _, err := range errs {
		if err != nil {
			failed = err
		}
	}
	return each, all, failed
}

// memory reads a line of /proc/PID/status: VmRSS is what a process holds now, VmHWM the most that it held, in MB.
func memory(pid int, key string) float64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, key+":"); ok {
			kb, _ := strconv.ParseFloat(strings.Fields(value)[0], 64)
			return kb / 1024
		}
	}
	return 0
}

// processorTime is what this process has used of the processors, in ms.
func processorTime() float64 {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage) // fails only for what is no process
	return ms(time.Duration(usage.Utime.Nano() + usage.Stime.Nano()))
}

// tick of the kernel's clock in /proc/PID/stat: always 1/100 s towards programs.
const clockTick = 10.0 // ms

// cpuTime is what a process has used of the processors, in ms.
func cpuTime(pid int) float64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, ok := strings.Cut(string(text), ") ") // the name before it may hold spaces
	fields := strings.Fields(rest)
	if !ok || len(fields) < 13 {
		return 0
	}
	user, _ := strconv.ParseFloat(fields[11], 64)
	system, _ := strconv.ParseFloat(fields[12], 64)
	return (user + system) * clockTick
}
