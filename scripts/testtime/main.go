// Command testtime runs go test and prints progress while the tests run, the output of what fails in full, and at the
// end each package's share of the time.
//
//	testtime [-report FILE] -- ARG...   run go test -json ARG..., print, and append the packages' times to FILE
//	testtime -sum FILE                  print the shares of all that was appended to FILE
//
// A skipped test fails the run, unless testkit leaves it out because TEST_CLOUD=none: those are counted.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

func main() {
	report := flag.String("report", "", "append the packages' times to this file")
	sum := flag.String("sum", "", "print the shares of what is in this file, and run nothing")
	flag.Parse()
	var code int
	var err error
	if *sum != "" {
		err = summary(os.Stdout, *sum)
	} else {
		code, err = run(flag.Args(), *report)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "testtime:", err)
		code = 1
	}
	os.Exit(code)
}

// run runs go test with the arguments. The exit code is go test's, or 1 when a test was skipped that must not be.
func run(args []string, report string) (code int, err error) {
	cmd := exec.CommandContext(context.Background(), "go", append([]string{"test", "-json"}, args...)...) //nolint:gosec // who runs this chooses them
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 1, err
	}
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	r := newResults(os.Stdout)
	if err := r.read(out); err != nil {
		return 1, err
	}
	ended := cmd.Wait()
	r.print()
	if ended != nil || len(r.skipped) > 0 || r.failed > 0 {
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
