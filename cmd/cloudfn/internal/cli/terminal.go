package cli

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
)

// prompter reads a password at a terminal; nil when no one can answer.
func (a *App) prompter(ctx context.Context) func(string) (string, error) {
	if a.In == nil || a.isCompleting || !term.IsTerminal(int(a.In.Fd())) {
		return nil
	}
	in := int(a.In.Fd())
	return func(text string) (string, error) {
		before, err := term.GetState(in)
		if err != nil {
			return "", err
		}
		fmt.Fprint(a.Err, text)
		defer fmt.Fprintln(a.Err)
		typed := make(chan string, 1)
		go func() {
			text, _ := term.ReadPassword(in) // an end of the input is an empty password
			typed <- string(text)
		}()
		select {
		case text := <-typed:
			if text == "" {
				return "", errors.New("nothing was typed")
			}
			return text, nil
		case <-ctx.Done(): // the goroutine reads until the process ends; the terminal must get its echo back
			return "", errors.Join(context.Cause(ctx), term.Restore(in, before))
		}
	}
}

// confirmer has a question answered at a terminal by y or yes; nil when no one can answer.
func (a *App) confirmer() func(ctx context.Context, question string) (bool, error) {
	if a.In == nil || a.ErrSize == nil || !term.IsTerminal(int(a.In.Fd())) {
		return nil
	}
	return func(ctx context.Context, question string) (bool, error) {
		fmt.Fprint(a.Err, question+" [y/N] ")
		typed := make(chan string, 1)
		go func() {
			text, _ := bufio.NewReader(a.In).ReadString('\n') // an end of the input is a no
			typed <- strings.ToLower(strings.TrimSpace(text))
		}()
		select {
		case text := <-typed:
			return text == "y" || text == "yes", nil
		case <-ctx.Done(): // the goroutine reads until the process ends
			return false, context.Cause(ctx)
		}
	}
}

// destructive are the names of commands that take away what cannot be had again, with their questions.
var destructive = map[string]string{"delete": "Delete", "rollback": "Roll back"}

// ask has a destructive command confirmed at a terminal, unless --yes was given.
func (a *App) ask(cmd *cobra.Command) {
	verb, run := destructive[cmd.Name()], cmd.RunE
	if verb == "" || cmd.HasSubCommands() {
		return
	}
	cmd.Flags().BoolP("yes", "y", false, "do not ask, at a terminal, before it is done")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		isSure, _ := cmd.Flags().GetBool("yes")
		if isDry, err := cmd.Flags().GetBool("dry-run"); isSure || err == nil && isDry || a.Confirm == nil {
			return run(cmd, args)
		}
		isWanted, err := a.Confirm(cmd.Context(), output.Clean(verb+" "+strings.Join(args, " "))+"?")
		if err == nil && !isWanted {
			err = exit.Failedf("nothing was changed")
		}
		if err != nil {
			return err
		}
		return run(cmd, args)
	}
}

// terminalSize reads a terminal's size at each call; nil when the file is no terminal.
func terminalSize(file *os.File) func() (width, height int) {
	fd := int(file.Fd())
	if !term.IsTerminal(fd) {
		return nil
	}
	return func() (int, int) {
		width, height, err := term.GetSize(fd)
		if err != nil || width <= 0 || height <= 0 {
			return 80, 24
		}
		return width, height
	}
}

// Width is that of the terminal that Out is, else $COLUMNS, else 80.
func (a *App) Width() int {
	if out, ok := a.Out.(*os.File); ok && a.isTerminal {
		if width, _, err := term.GetSize(int(out.Fd())); err == nil && width > 0 {
			return width
		}
	}
	if width, err := strconv.Atoi(a.Getenv("COLUMNS")); err == nil && width > 0 {
		return width
	}
	return 80
}

// HasUTF8 reports whether the locale is one of UTF-8. As everywhere, the first of these variables that is set decides.
func (a *App) HasUTF8() bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if locale := strings.ToLower(a.Getenv(name)); locale != "" {
			return strings.Contains(locale, "utf-8") || strings.Contains(locale, "utf8")
		}
	}
	return false
}

// Wait reports whether a command waits for the end of what it began, and for how long.
type Wait struct {
	IsOn  bool
	Limit time.Duration
}

// Flags adds --wait and --timeout. The limit that it has already is the one by default.
func (w *Wait) Flags(cmd *cobra.Command, what string) {
	cmd.Flags().BoolVar(&w.IsOn, "wait", false, "wait until "+what)
	cmd.Flags().DurationVar(&w.Limit, "timeout", cmp.Or(w.Limit, 10*time.Minute), "how long to wait")
}

// Timeout is the error of something that did not end within its time.
func Timeout(format string, args ...any) error {
	return timeout{exit.Errorf(exit.Unavailable, format, args...)}
}

type timeout struct{ error }

// Is makes it a context.DeadlineExceeded.
func (timeout) Is(target error) bool { return target == context.DeadlineExceeded }

// Unwrap gives the error with its exit code.
func (t timeout) Unwrap() error { return t.error }

// The pauses between two polls.
const (
	firstPause = 400 * time.Millisecond
	lastPause  = 3 * time.Second
)

// Waiter waits for one thing, or for some.
type Waiter[T any] struct {
	Get       func(context.Context) (T, error)
	Done      func(T) (bool, error) // an error ends the wait, unless it is transient
	Rows      func(T) []output.Row  // shown on stderr; nil = nothing is shown
	Remaining func(T) string        // what is not done yet, and how to follow it
}

// Wait gets it until it is done, or once if the user does not want to wait. latest is what is known of it before.
func (w Waiter[T]) Wait(ctx context.Context, a *App, wait Wait, latest T) (T, error) {
	if !wait.IsOn {
		return w.Get(ctx)
	}
	show := func(T) {}
	if w.Rows != nil {
		draw, stop := a.Progress(ctx)
		defer stop()
		show = func(t T) { draw(w.Rows(t)...) }
	}
	show(latest)
	within, cancel := context.WithTimeout(ctx, wait.Limit)
	defer cancel()
	for pause := firstPause; ; pause = min(pause*5/4, lastPause) {
		isDone := false
		found, err := w.Get(within)
		if err == nil {
			latest = found
			show(latest)
			isDone, err = w.Done(latest)
		}
		if isDone || err != nil && within.Err() == nil && !api.IsTransient(err) {
			return latest, err
		}
		select {
		case <-time.After(pause):
			continue
		case <-within.Done():
		}
		if ctx.Err() != nil {
			return latest, fmt.Errorf("%w: what was begun goes on (%s)", context.Cause(ctx), w.Remaining(latest))
		}
		return latest, Timeout("not done within %s, and it goes on: %s", wait.Limit, w.Remaining(latest))
	}
}

// Progress shows on stderr what a command waits for. At a terminal the elapsed time goes on between two calls of show.
// stop must be called before anything else is printed.
func (a *App) Progress(ctx context.Context) (show func(rows ...output.Row), stop func()) {
	p := output.Progress{Out: a.Err, Color: a.ErrSize != nil && a.HasColors, Size: a.ErrSize, Began: a.Now()}
	var lock sync.Mutex
	var shown []output.Row
	draw := func() {
		lock.Lock()
		defer lock.Unlock()
		p.Show(a.Now(), shown)
	}
	ctx, cancel := context.WithCancel(ctx)
	var clock sync.WaitGroup
	if a.ErrSize != nil {
		clock.Go(func() {
			for tick := time.NewTicker(time.Second); ; {
				select {
				case <-tick.C:
					draw()
				case <-ctx.Done():
					return
				}
			}
		})
	}
	return func(rows ...output.Row) {
		lock.Lock()
		shown = rows
		lock.Unlock()
		draw()
	}, func() { cancel(); clock.Wait() }
}

const (
	resends = 3
	// busyFor is how long cloudfn may work on an action whose first answer was lost: it starts a stopped server to
	// rebuild it.
	busyFor = 5 * time.Minute
)

// Resend calls send, and calls it again when the connection broke off before the answer. What it sends must have an
// id, so that cloudfn does it once. isLost reports whether cloudfn may have done it, although the last call failed.
func (a *App) Resend(ctx context.Context, what string, send func() error) (isLost bool, err error) {
	var isCutOff bool
	began := time.Now()
	for n := 0; ; {
		err := send()
		if err == nil {
			return false, nil
		}
		failure, ok := errors.AsType[*api.Error](err)
		isCutOff = isCutOff || ok && failure.IsCutOff
		pause, isBusy := busy(failure)
		switch {
		case !isCutOff || !isBusy && !api.IsTransient(err):
			return false, err
		case ctx.Err() != nil:
			return true, err
		case isBusy && time.Since(began) < busyFor:
		case !isBusy && n < resends:
			n++
			pause = time.Duration(n) * time.Second
			a.Notef("%s; sending the same %s again", err, what)
		default:
			return true, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// SendOnce sends a POST, and sends it again when the connection broke off before the answer. Its Idempotency-Key has
// cloudfn do it once: the operation must take one.
func SendOnce[T any](ctx context.Context, a *App, path string, body any) (item api.Item[T], err error) {
	keyed := api.WithKey(ctx)
	isLost, err := a.Resend(ctx, "request", func() (err error) {
		item, err = api.Send[T](keyed, a.API(), http.MethodPost, path, body)
		return err
	})
	if isLost && ctx.Err() == nil {
		err = fmt.Errorf("%w; it may have been done: look before you repeat it", err)
	}
	return item, err
}

// busy reports whether cloudfn works on what was sent before, and when to ask again.
func busy(failure *api.Error) (pause time.Duration, isBusy bool) {
	if failure == nil || failure.Status != http.StatusConflict {
		return 0, false
	}
	seconds, err := strconv.Atoi(failure.RetryAfter)
	return time.Duration(seconds) * time.Second, err == nil
}
