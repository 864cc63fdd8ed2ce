package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
)

const (
	resends = 3                // of an order whose answer was lost
	grace   = 20 * time.Second // for the answer, when the user does not want to wait any more
)

// place sends an order. When the connection breaks off it sends the same again: it is the same order then. Ctrl-C lets it have its
// answer first, because cloudfn stops asking for servers when its caller hangs up.
func (a *app) place(ctx context.Context, client *api.Client, l launch) (api.Item[api.Order], error) {
	limit := l.flags.wait.limit
	timed, end := context.WithTimeoutCause(context.WithoutCancel(ctx), limit, late{fmt.Errorf("no answer within %s", limit)})
	defer end()
	sending, cancel := context.WithCancelCause(timed)
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() {
		if errors.Is(context.Cause(ctx), errInterrupted) {
			fmt.Fprintf(a.err, "The order is being sent: wait a moment for its answer, or press Ctrl-C again and %s\n", a.followHint(l.id, l.connection()))
			select {
			case <-time.After(grace):
			case <-sending.Done():
			}
		}
		cancel(context.Cause(ctx))
	})()
	var broke bool
	for n := 0; ; n++ {
		placed, _, err := api.Send[api.Order](sending, client, http.MethodPost, "/v1/launch", l.order)
		if err == nil {
			return placed, nil
		}
		lost, ok := errors.AsType[*api.Error](err)
		broke = broke || ok && lost.Broke
		if !broke || !passing(err) || n == resends || ctx.Err() != nil {
			return placed, a.unplaced(err, l, broke)
		}
		fmt.Fprintf(a.err, "%s; sending the same order again\n", output.Clean(err.Error()))
		select {
		case <-time.After(time.Duration(n+1) * time.Second):
		case <-sending.Done():
		}
	}
}

// unplaced says how to go on when it is not known what became of an order.
func (a *app) unplaced(err error, l launch, broke bool) error {
	switch {
	case errors.Is(err, errInterrupted):
		return fmt.Errorf("%w before the answer came. The order may be there: %s. To go on with it: %s", errInterrupted, a.followHint(l.id, l.connection()), l.again)
	case broke, passing(err), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w. To go on, with the same order: %s", err, l.again)
	}
	return err
}

// followHint is how to follow an order.
func (a *app) followHint(id, connection string) string {
	hint := "follow it by " + a.name + " orders show " + id + " --wait"
	if connection != "" {
		hint += " --connection " + connection
	}
	return hint
}

// keyFile is where a private key goes. It is there before anything is sent, so that no key is made that cannot be kept.
type keyFile struct {
	file *os.File // nil = no key is wanted
	kept bool
}

func newKeyFile(path string) (*keyFile, error) {
	if path == "" {
		return &keyFile{}, nil
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600) //nolint:gosec // the user names it
	switch {
	case errors.Is(err, os.ErrExist):
		return nil, wrong("--generate-key: %s is there already, and is not overwritten", path)
	case err != nil:
		return nil, wrong("--generate-key: %w", err)
	}
	return &keyFile{file: file}, nil
}

// keep writes the key that the answer has.
func (k *keyFile) keep(o api.Order) error {
	switch {
	case k.file == nil:
		return nil
	case o.PrivateKey == nil:
		return failed{fmt.Errorf("order %s was there already, and its private key is in the answer to the command that made it: if that is lost, delete the servers and launch them under another id", o.ID)}
	}
	if _, err := k.file.WriteString(*o.PrivateKey); err != nil {
		return failed{fmt.Errorf("the private key of order %s could not be written, and is not shown again: delete the servers and launch them under another id (%w)", o.ID, err)}
	}
	k.kept = true
	return nil
}

// close removes a file in which there is no key.
func (k *keyFile) close() {
	if k.file == nil {
		return
	}
	_ = k.file.Close()
	if !k.kept {
		_ = os.Remove(k.file.Name())
	}
}
