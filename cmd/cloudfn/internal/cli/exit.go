package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
)

// exit prints an error in one line, and gives its exit code.
func (a *App) exit(err error, command string) int {
	if err == nil {
		return exit.Done
	}
	text := oneLine(err)
	if !a.hasBegun && a.Code(err) == exit.Usage {
		text = plainUsage(text)
		text += " (see " + command + " --help)"
	}
	fmt.Fprintln(a.Err, "cloudfn: "+text)
	return a.Code(err)
}

// oneLine prepares an error for a terminal: cobra's have line breaks and tabs, and others quote anybody's names.
func oneLine(err error) string {
	return output.Clean(strings.Join(strings.Fields(err.Error()), " "))
}

// Code is the exit code of an error.
func (a *App) Code(err error) int {
	type coded interface {
		error
		ExitCode() int
	}
	if errors.Is(err, ErrInterrupted) || errors.Is(err, context.Canceled) {
		return exit.Interrupted
	}
	if !a.hasBegun {
		return exit.Usage
	}
	if e, ok := errors.AsType[coded](err); ok {
		return e.ExitCode()
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return exit.Unavailable
	}
	return exit.Failed
}

// Each does the same to each name, and goes on after a failure, whose reason it prints. With only one name, or when the
// others would fail as well, the failure is the command's error.
func (a *App) Each(names []string, do func(name string) error) error {
	var failed []string
	for _, name := range names {
		err := do(name)
		if err == nil {
			continue
		}
		if code := a.Code(err); len(names) == 1 || code == exit.Unavailable || code == exit.Interrupted {
			return err
		}
		a.Notef("%s: %s", name, oneLine(err))
		failed = append(failed, name)
	}
	if len(failed) == 0 {
		return nil
	}
	return exit.Failedf("it failed for %d of %d: %s", len(failed), len(names), strings.Join(failed, ", "))
}
