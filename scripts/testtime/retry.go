package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// failure is a test of the top level that failed.
type failure struct{ pkg, test string }

// retry runs each failed test once more, alone, when at most limit tests failed and nothing else went wrong. A test
// that passes then counts as passed, and print names it.
func (r *results) retry(args []string, limit int) error {
	if len(r.failures) == 0 || len(r.failures) > limit || r.isBroken {
		return nil
	}
	for _, f := range slices.Clone(r.failures) {
		fmt.Fprintf(r.out, "\n== once more, alone: %s %s\n", f.pkg, f.test)
		once := newResults(r.out)
		ended, err := goTest(once, retryArgs(args, f))
		if err != nil {
			return err
		}
		if ended != nil || once.failed > 0 || once.passed == 0 {
			continue
		}
		r.forgive(f)
	}
	return nil
}

// forgive takes a failure back.
func (r *results) forgive(f failure) {
	name := f.pkg + " " + f.test
	r.retried = append(r.retried, name)
	r.failures = slices.DeleteFunc(r.failures, func(other failure) bool { return other == f })
	r.failed -= 1 + r.failedParts[name]
	r.passed += 1 + r.failedParts[name]
}

// retryArgs are the arguments of go test that run only the failed test: the flags of the run without its packages.
func retryArgs(args []string, f failure) []string {
	var flags []string
	for i := 0; i < len(args); i++ {
		switch {
		case args[i] == "-run":
			i++
		case !strings.HasPrefix(args[i], "./"):
			flags = append(flags, args[i])
		}
	}
	return append(flags, "-count=1", "-run", "^"+f.test+"$", "./"+f.pkg)
}

// goTest runs go test and reads its events. ended is how go test itself ended.
func goTest(r *results, args []string) (ended, err error) {
	args = append([]string{"test", "-json"}, args...)
	cmd := exec.CommandContext(context.Background(), "go", args...) //nolint:gosec // who runs this chooses them
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	if err := r.read(out); err != nil {
		return nil, err
	}
	return cmd.Wait(), nil
}

func (r *results) printRetried(out io.Writer) {
	if len(r.retried) > 0 {
		fmt.Fprintf(out, "\n*** FAILED, AND PASSED ALONE, a defect of the program or of the test: %s ***\n",
			strings.Join(r.retried, ", "))
	}
}
