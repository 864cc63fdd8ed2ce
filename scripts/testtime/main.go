// Command testtime runs go test and prints progress while the tests run, the output of what fails in full, and at the
// end each package's share of the time.
//
//	testtime [-report FILE] [-retry N] -- ARG...   run go test -json ARG..., and append the packages' times to FILE
//	testtime -sum FILE                             print the shares of all that was appended to FILE
//
// With -retry N, tests that fail run once more, alone, when they are at most N. Those that pass then are named at the
// end.
// A skipped test fails the run, unless testkit leaves it out because TEST_CLOUD=none: those are counted.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
)

func main() {
	report := flag.String("report", "", "append the packages' times to this file")
	retries := flag.Int("retry", 0, "run tests that fail once more, alone, if they are at most this many")
	sum := flag.String("sum", "", "print the shares of what is in this file, and run nothing")
	flag.Parse()
	var code int
	var err error
	if *sum != "" {
		err = summary(os.Stdout, *sum)
	} else {
		code, err = run(flag.Args(), *report, *retries)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "testtime:", err)
		code = 1
	}
	os.Exit(code)
}

// run runs go test with the arguments. The exit code is 1 when a test failed, or was skipped that must not be.
func run(args []string, report string, retries int) (code int, err error) {
	r := newResults(os.Stdout)
	ended, err := goTest(r, args)
	if err != nil {
		return 1, err
	}
	if err := r.retry(args, retries); err != nil {
		return 1, err
	}
	r.print()
	if ended != nil && len(r.retried) == 0 || len(r.skipped) > 0 || r.failed > 0 {
		code = 1
	}
	if report == "" {
		return code, nil
	}
	return code, appendTimes(report, r.times)
}

// read takes the events of go test. A line that is no event, such as one of the compiler, is printed as it is.
func (r *results) read(out io.Reader) error {
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil || e.Action == "" {
			fmt.Fprintln(r.out, lines.Text())
			continue
		}
		r.add(e)
	}
	return lines.Err()
}

func appendTimes(file string, times []taken) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600) //nolint:gosec // likewise
	if err != nil {
		return err
	}
	for _, t := range times {
		if _, err := fmt.Fprintf(f, "%.2f %s\n", t.seconds, t.name); err != nil {
			return err
		}
	}
	return f.Close()
}

func summary(out io.Writer, file string) error {
	text, err := os.ReadFile(file) //nolint:gosec // likewise
	if err != nil {
		return err
	}
	var times []taken
	for line := range strings.Lines(string(text)) {
		var t taken
		if _, err := fmt.Sscanf(line, "%g %s", &t.seconds, &t.name); err != nil {
			return fmt.Errorf("%s: line %q is not a time and a name", file, line)
		}
		times = append(times, t)
	}
	printShares(out, times)
	return nil
}
