package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
)

// event is what go test -json prints. See go doc test2json.
type event struct {
	Action  string
	Package string
	Test    string
	Output  string
	Elapsed float64
}

// leftOut is how testkit begins the reason of a test that it leaves out.
const leftOut = "left out: "

// slow is from how many seconds on a test is printed as soon as it ends.
const slow = 30

// taken is how many seconds a package or a test took.
type taken struct {
	name    string
	seconds float64
}

// results are kept of a run of go test.
type results struct {
	out            io.Writer
	output         map[string][]string // by package and test, until it ends
	times, tests   []taken             // of packages, and of tests
	left, skipped  []string
	passed, failed int
	packages       int
	failures       []failure
	failedParts    map[string]int // failed subtests, by package and test
	isBroken       bool           // a package failed for another reason than a failed test
	retried        []string       // tests that passed when they ran once more
}

func newResults(out io.Writer) *results {
	return &results{out: out, output: map[string][]string{}, failedParts: map[string]int{}}
}

func (r *results) add(e event) {
	e.Package = strings.TrimPrefix(e.Package, "github.com/cloudfn/cloudfn/")
	name := strings.TrimSpace(e.Package + " " + e.Test)
	switch e.Action {
	case "output":
		r.output[name] = append(r.output[name], e.Output)
	case "build-output":
		fmt.Fprint(r.out, e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			r.endPackage(e)
		} else {
			r.endTest(e, name)
		}
		delete(r.output, name)
	}
}

func (r *results) endTest(e event, name string) {
	output := strings.Join(r.output[name], "")
	switch e.Action {
	case "pass":
		r.passed++
	case "fail":
		r.failed++
		if test, _, isPart := strings.Cut(e.Test, "/"); isPart {
			r.failedParts[e.Package+" "+test]++
		} else {
			r.failures = append(r.failures, failure{e.Package, e.Test})
		}
		fmt.Fprintf(r.out, "\nFAIL %s\n%s\n", name, output)
	case "skip":
		if strings.Contains(output, leftOut) {
			r.left = append(r.left, name)
		} else {
			r.skipped = append(r.skipped, name)
			fmt.Fprintf(r.out, "\nSKIPPED %s\n%s\n", name, output)
		}
	}
	if strings.Contains(e.Test, "/") {
		return // its time is in its parent's
	}
	own := e.Elapsed - waited(output)
	r.tests = append(r.tests, taken{name, own})
	if own >= slow {
		fmt.Fprintf(r.out, "     %7.1f s      %s\n", own, name)
	}
}

// waited is how many seconds a test has waited until no other one kept the sandbox busy, by what testkit.Heavy logs.
func waited(output string) (seconds float64) {
	if at := strings.Index(output, "waited "); at >= 0 {
		// 0 when the test has logged something else
		_, _ = fmt.Sscanf(output[at:], "waited %g s for its turn", &seconds)
	}
	return seconds
}

// endPackage prints the package's line. When the package failed it also prints what belongs to no test, such as a
// panic, and the output of the tests that have not ended.
func (r *results) endPackage(e event) {
	r.packages++
	if e.Action == "skip" {
		return // it has no tests
	}
	word := map[string]string{"pass": "ok", "fail": "FAIL"}[e.Action]
	if e.Action == "fail" {
		r.isBroken = r.isBroken || !slices.ContainsFunc(r.failures, func(f failure) bool { return f.pkg == e.Package })
		for name, output := range r.output {
			if name == e.Package || strings.HasPrefix(name, e.Package+" ") {
				r.isBroken = r.isBroken || name != e.Package // a test that has not ended
				fmt.Fprintf(r.out, "\n%s\n%s", name, strings.Join(output, ""))
				delete(r.output, name)
			}
		}
		r.failed = max(r.failed, 1)
	}
	fmt.Fprintf(r.out, "%-4s %7.1f s %4d %s\n", word, e.Elapsed, r.packages, e.Package)
	r.times = append(r.times, taken{e.Package, e.Elapsed})
}

func (r *results) print() {
	printShares(r.out, r.times)
	fmt.Fprintln(r.out, "\nThe slowest tests, without their waiting for turns (testkit.Heavy):")
	for _, t := range first(sorted(r.tests), 10) {
		fmt.Fprintf(r.out, "%8.1f s  %s\n", t.seconds, t.name)
	}
	if len(r.left) > 0 {
		fmt.Fprintf(r.out, "\n*** LEFT OUT: %d tests, most for want of the sandbox cloud; make test runs them ***\n",
			len(r.left))
	}
	if len(r.skipped) > 0 {
		fmt.Fprintf(r.out, "\n*** SKIPPED, which no test may be: %s ***\n", strings.Join(r.skipped, ", "))
	}
	r.printRetried(r.out)
	fmt.Fprintf(r.out, "\n%d passed, %d failed, %d skipped\n", r.passed, r.failed, len(r.left)+len(r.skipped))
}

// printShares prints how much of the time each package took, the most expensive one first. Packages run side by side,
// so the sum is more than what the clock showed.
func printShares(out io.Writer, times []taken) {
	total := 0.0
	for _, t := range times {
		total += t.seconds
	}
	fmt.Fprintf(out, "\nEach package's share of %.0f s:\n", total)
	for _, t := range sorted(times) {
		if share := 100 * t.seconds / max(total, 1); share >= 0.5 {
			fmt.Fprintf(out, "%8.1f s  %3.0f %%  %s\n", t.seconds, share, t.name)
		}
	}
}

func sorted(list []taken) []taken {
	return slices.SortedStableFunc(slices.Values(list),
		func(a, b taken) int { return cmp.Compare(b.seconds, a.seconds) })
}

func first(list []taken, n int) []taken { return list[:min(n, len(list))] }
