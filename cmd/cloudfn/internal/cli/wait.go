package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
)

// waiting is whether a command waits for what it began, and for how long.
type waiting struct {
	on    bool
	limit time.Duration
}

func (w *waiting) flags(cmd *cobra.Command, what string) {
	cmd.Flags().BoolVar(&w.on, "wait", false, "wait until "+what)
	cmd.Flags().DurationVar(&w.limit, "timeout", 10*time.Minute, "how long to wait")
}

// late is what has not ended within its time.
type late struct{ error }

// Is makes it a matter of time for those who ask.
func (late) Is(target error) bool { return target == context.DeadlineExceeded }

// The pauses between two looks at something.
const (
	firstPause = 400 * time.Millisecond
	lastPause  = 3 * time.Second
)

// until looks again and again, until done. What is away for a moment is looked at again. left says what is not done yet.
func until(ctx context.Context, limit time.Duration, look func(context.Context) (done bool, err error), left func() string) error {
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for pause := firstPause; ; pause = min(pause*5/4, lastPause) {
		done, err := look(within)
		if done || err != nil && within.Err() == nil && !passing(err) {
			return err
		}
		select {
		case <-time.After(pause):
			continue
		case <-within.Done():
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%w: what was begun goes on (%s)", context.Cause(ctx), left())
		}
		return late{fmt.Errorf("not done within %s, and it goes on: %s", limit, left())}
	}
}

// passing says whether an error may be gone at the next look.
func passing(err error) bool {
	answer, ok := errors.AsType[*api.Error](err)
	return ok && (answer.Status == 0 || answer.Status == http.StatusTooManyRequests || answer.Status >= http.StatusInternalServerError)
}
