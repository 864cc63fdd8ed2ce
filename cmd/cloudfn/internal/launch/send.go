package launch

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
)

// grace is how long the answer may take after Ctrl-C.
const grace = 20 * time.Second

// send sends the order; a lost answer makes it send the same order again. Ctrl-C waits for the answer, because
// cloudfn stops an order when its caller hangs up.
func (l *launch) send(ctx context.Context) (order api.Item[api.Order], err error) {
	limit := l.wait.Limit
	tooLate := cli.Timeout("no answer within %s", limit)
	timed, end := context.WithTimeoutCause(context.WithoutCancel(ctx), limit, tooLate)
	defer end()
	sending, cancel := context.WithCancelCause(timed)
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() {
		if errors.Is(context.Cause(ctx), cli.ErrInterrupted) {
			l.Notef("The order is being sent: wait a moment for its answer, or press Ctrl-C again and %s",
				l.followHint())
			select {
			case <-time.After(grace):
			case <-sending.Done():
			}
		}
		cancel(context.Cause(ctx))
	})()
	isLost, err := l.Resend(ctx, "order", func() (err error) {
		order, err = api.Send[api.Order](sending, l.API(), http.MethodPost, "/v1/launch", l.order)
		return err
	})
	switch {
	case err == nil:
		return order, nil
	case errors.Is(err, cli.ErrInterrupted):
		return order, fmt.Errorf("%w before the answer came. The order may be there: %s. To go on with it: %s",
			cli.ErrInterrupted, l.followHint(), l.resume)
	case isLost, api.IsTransient(err), errors.Is(err, context.DeadlineExceeded):
		return order, fmt.Errorf("%w. To go on, with the same order: %s", err, l.resume)
	}
	return order, err
}

// keyFile is where a private key goes. It exists before the order is sent: cloudfn makes no key that cannot be stored.
type keyFile struct {
	file      *os.File // nil = the user wants no key
	isWritten bool
}

func newKeyFile(path string) (*keyFile, error) {
	if path == "" {
		return &keyFile{}, nil
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600) //nolint:gosec // the user names it
	switch {
	case errors.Is(err, os.ErrExist):
		return nil, exit.Usagef("--generate-key: %s is there already, and is not overwritten", path)
	case err != nil:
		return nil, exit.Usagef("--generate-key: %w", err)
	}
	return &keyFile{file: file}, nil
}

// write writes the private key of a launch's answer.
func (k *keyFile) write(o api.Order) error {
	const advice = "delete the servers and launch them under another id"
	if k.file == nil {
		return nil
	}
	if o.PrivateKey == nil {
		return exit.Failedf("order %s was there already, and its private key is in the answer to the "+
			"command that made it: if that is lost, %s", o.ID, advice)
	}
	if _, err := k.file.WriteString(*o.PrivateKey); err != nil {
		return exit.Failedf(
			"the private key of order %s could not be written, and is not shown again: %s (%w)", o.ID, advice, err)
	}
	k.isWritten = true
	return nil
}

// close removes a file that has no key.
func (k *keyFile) close() {
	if k.file == nil {
		return
	}
	_ = k.file.Close()
	if !k.isWritten {
		_ = os.Remove(k.file.Name())
	}
}
