package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
)

// Wait reports whether a command waits for the end of what it began, and for how long.
type Wait struct {
	IsOn  bool
	Limit time.Duration
}

// Flags adds --wait and --timeout. The limit that it has already is the one by default.
func (w *Wait) Flags(cmd *cobra.Command, what string) {
	cmd.Flags().BoolVar(&w.IsOn, "wait", false, "wait until "+what)
	cmd.Flags().DurationVar(&w.Limit, "timeout", cmp.Or(w.Limit, 10*time.Minute), "how long to wait")
	Choices(cmd, "timeout")
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

// Poll calls poll until it is done, or fails with an error that is not transient. state says what is not done yet.
func Poll(
	ctx context.Context, limit time.Duration, poll func(context.Context) (isDone bool, err error), state func() string,
) error {
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for pause := firstPause; ; pause = min(pause*5/4, lastPause) {
		isDone, err := poll(within)
		if isDone || err != nil && within.Err() == nil && !api.IsTransient(err) {
			return err
		}
		select {
		case <-time.After(pause):
			continue
		case <-within.Done():
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%w: what was begun goes on (%s)", context.Cause(ctx), state())
		}
		return Timeout("not done within %s, and it goes on: %s", limit, state())
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
// id, so that cloudfn does it once. isLost says that cloudfn may have done it, although the last call failed.
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
