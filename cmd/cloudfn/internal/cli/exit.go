package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/login"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
)

// The exit codes, as the help says them.
const (
	exitDone        = 0
	exitFailed      = 1
	exitUsage       = 2
	exitRefused     = 3
	exitAbsent      = 4
	exitConflict    = 5
	exitAway        = 6
	exitInterrupted = 130
)

// errInterrupted is that the user does not want to wait any more. Whoever leaves something running says so by wrapping it.
var errInterrupted = errors.New("interrupted")

// failed is what was begun and did not succeed.
type failed struct{ error }

// usage is what the user has to say otherwise.
type usage struct{ error }

func wrong(format string, args ...any) error { return usage{fmt.Errorf(format, args...)} }

// absent and conflict are what the client finds out itself.
type (
	absent   struct{ error }
	conflict struct{ error }
)

// exit says what went wrong, in one line, and gives the code for it.
func (a *app) exit(err error, command string) int {
	if err == nil {
		return exitDone
	}
	code := a.code(err)
	text := oneLine(err)
	if code == exitUsage && !a.running {
		text += " (see " + command + " --help)"
	}
	fmt.Fprintln(a.err, "cloudfn: "+text)
	return code
}

// oneLine is what an error says: cobra's have lines and tabs, and names in others are anybody's.
func oneLine(err error) string {
	return output.Clean(strings.Join(strings.Fields(err.Error()), " "))
}

// each does it to one thing after the other, also when it fails with some: why is said for each. What goes wrong with the only
// one is the command's error, and so is what would go wrong with all.
func (a *app) each(names []string, do func(name string) error) error {
	var bad []string
	for _, name := range names {
		err := do(name)
		if err == nil {
			continue
		}
		if code := a.code(err); len(names) == 1 || code == exitAway || code == exitInterrupted {
			return err
		}
		fmt.Fprintf(a.err, "%s: %s\n", output.Clean(name), oneLine(err))
		bad = append(bad, name)
	}
	if len(bad) == 0 {
		return nil
	}
	return failed{fmt.Errorf("it failed for %d of %d: %s", len(bad), len(names), strings.Join(bad, ", "))}
}

func (a *app) code(err error) int {
	var (
		answer   *api.Error
		refused  login.Error
		away     login.Away
		notDone  failed
		wrong    usage
		missing  absent
		conflict conflict
		column   output.ColumnError
	)
	switch {
	case errors.Is(err, errInterrupted), errors.Is(err, context.Canceled):
		return exitInterrupted
	case !a.running, errors.As(err, &wrong), errors.As(err, &column):
		return exitUsage
	case errors.As(err, &answer):
		return ofAnswer(answer)
	case errors.As(err, &refused):
		return exitRefused
	case errors.As(err, &away), errors.Is(err, context.DeadlineExceeded):
		return exitAway
	case errors.As(err, &missing):
		return exitAbsent
	case errors.As(err, &conflict):
		return exitConflict
	case errors.As(err, &notDone):
		return exitFailed
	}
	return exitFailed
}

func ofAnswer(e *api.Error) int {
	switch status := e.Status; {
	case e.Code == "" && status == http.StatusNotFound: // another server, or another path of it: nothing was looked for
		return exitUsage
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return exitRefused
	case status == http.StatusNotFound:
		return exitAbsent
	case status == http.StatusConflict:
		return exitConflict
	case status == 0, status == http.StatusTooManyRequests, status >= http.StatusInternalServerError:
		return exitAway
	}
	return exitUsage
}
