// Package launch holds the command that launches servers.
package launch

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/orders"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// launch is a run of the command.
type launch struct {
	*cli.App
	file, userData, keyFile string
	isDryRun                bool
	wait                    cli.Wait

	order  order
	id     string
	resume string // the command that sends the same order
}

// Command launches servers.
func Command(a *cli.App) *cobra.Command {
	l := &launch{App: a}
	cmd := &cobra.Command{
		Use:   "launch NAME --flavor FLAVOR --image IMAGE",
		Short: "Launch servers",
		Long: `Launch one or more servers, as one order. The order gets its id before it is sent, and cloudfn carries
out an id once. So whatever breaks meanwhile, no server is lost or launched twice.

With --wait, Ctrl-C leaves the launch running and says how to follow it.`,
		Example: `  cloudfn launch web --flavor m1.small --image cirros --network private --wait
  cloudfn launch worker --count 3 --min-vcpus 2 --min-ram-mb 2048 --image cirros --network private \
    --on-failure rollback --wait
  cloudfn launch web --flavor m1.small --image cirros --network private --generate-key web.key \
    --user-data cloud-init.yaml
  cloudfn launch db --flavor m1.small --image debian --network private --boot-volume 20 \
    --volume size=100,name=db-data
  cloudfn launch course --flavor m1.small --image cirros --network private --count 3 --lease 2d --before-end 1h \
    --on-end stop
  cloudfn launch --file order.yaml --dry-run`,
		Annotations: cli.Calls("launch", "getOrder"), Args: cobra.MaximumNArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if l.isDryRun {
				if err := l.TextOnly(cmd, "table", "wide", "json", "yaml"); err != nil {
					return err
				}
			}
			if err := l.read(cmd, args); err != nil {
				return err
			}
			if l.isDryRun {
				return l.dryRun(cmd.Context())
			}
			return l.run(cmd.Context())
		},
	}
	orderFlags(a, cmd)
	flags := cmd.Flags()
	flags.StringVar(&l.file, "file", "", "the order as JSON or YAML (- for stdin); flags override it")
	flags.StringVar(&l.userData, "user-data", "", "file with the user data for cloud-init, text or not (- for stdin)")
	flags.StringVar(&l.keyFile, "generate-key", "", "make an SSH key pair, and write its private key to this new file")
	flags.BoolVar(&l.isDryRun, "dry-run", false, "launch nothing, and say what would make the launch fail")
	l.wait.Flags(cmd, "all servers are launched, or have failed")
	cmd.MarkFlagsMutuallyExclusive("key-name", "generate-key")
	cmd.MarkFlagsMutuallyExclusive("dry-run", "wait")
	return cmd
}

// run sends the order, and waits for its end if the user wants that.
func (l *launch) run(ctx context.Context) error {
	key, err := newKeyFile(l.keyFile)
	if err != nil {
		return err
	}
	defer key.close()
	began := l.Now()
	order, err := l.send(ctx)
	if err != nil {
		return err
	}
	lost := key.write(order.Value)
	if l.wait.IsOn {
		l.wait.Limit -= l.Now().Sub(began)
		if order, err = l.await(ctx, order); err != nil {
			return join(err, lost)
		}
	}
	if err := orders.Print(l.App, order); err != nil {
		return join(err, lost)
	}
	if err := orders.Result(l.App, order.Value); err != nil {
		return join(err, lost)
	}
	if order.Value.Status == api.OrderStatusRunning {
		l.Notef("The launch goes on: %s", l.followHint())
	}
	return lost
}

// join adds to an error that there is no private key: no later command says so.
func join(err, lost error) error {
	if lost == nil {
		return err
	}
	return fmt.Errorf("%w; %w", err, lost)
}

func (l *launch) await(ctx context.Context, launched api.Item[api.Order]) (api.Item[api.Order], error) {
	ended, err := orders.Waiter{
		ID: l.id, Connection: l.connection(), Flags: l.wait, Launched: launched, Resend: l.send,
	}.Wait(ctx, l.App)
	if err == nil {
		return orders.WithSecret(ended, launched.Value.Callback), nil
	}
	if errors.Is(err, cli.ErrInterrupted) || errors.Is(err, context.DeadlineExceeded) { // they say how to follow it
		return ended, err
	}
	return ended, fmt.Errorf("%w. The order is placed: %s", err, l.followHint())
}

func (l *launch) connection() string { return l.order.text("connection_id") }

func (l *launch) followHint() string { return orders.FollowHint(l.App, l.id, l.connection()) }

// quiet is how long a terminal shows nothing while an order is being sent.
const quiet = 2 * time.Second

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
	if l.ErrSize != nil {
		defer time.AfterFunc(quiet, func() {
			l.Notef("The order is sent; its answer comes when Nova has accepted the servers.")
		}).Stop()
	}
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

// dryRun shows what an order would do.
func (l *launch) dryRun(ctx context.Context) error {
	report, err := api.Send[api.LaunchReport](ctx, l.API(), http.MethodPost, "/v1/launch?dry_run=true", l.order)
	if err != nil {
		return err
	}
	for n, problem := range report.Value.Problems {
		report.Value.Problems[n].Field = l.FlagOf(problem.Field)
	}
	if l.Print.IsData() {
		err = output.One(&l.Print, report, output.Table[api.LaunchReport]{})
	} else {
		_, err = fmt.Fprint(l.Out, reportText(report.Value, l.Print.Color))
	}
	if err == nil && !report.Value.Ok {
		problems := output.Count(len(report.Value.Problems), "problem")
		return exit.Usagef("the launch would fail: %s", problems)
	}
	return err
}

// reportText has a line for each finding: first what fails, then what would be launched, then what is not known.
func reportText(r api.LaunchReport, color bool) string {
	var text strings.Builder
	for _, p := range r.Problems {
		line := api.WithAllowed(p.Field+": "+p.Detail, "", domain.Deref(p.Allowed))
		fmt.Fprintln(&text, output.Paint(color, "error")+"  "+output.Clean(line))
	}
	if r.Ok {
		for _, line := range launches(domain.Deref(r.Resolved)) {
			fmt.Fprintln(&text, output.Paint(color, "ok")+"  "+output.Clean(line))
		}
	}
	for _, u := range r.Unchecked {
		fmt.Fprintln(&text, output.Dim(color, "unchecked")+"  "+output.Clean(u.Field+": "+u.Detail))
	}
	if r.AsOf != nil {
		fmt.Fprintln(&text, output.Dim(color, "as of "+output.Time(*r.AsOf)))
	}
	return text.String()
}

// launches has a line for each run of servers that are alike.
func launches(all []api.LaunchResolved) []string {
	var lines []string
	for begin := 0; begin < len(all); {
		of, end := ingredients(all[begin]), begin+1
		for end < len(all) && ingredients(all[end]) == of {
			end++
		}
		names := all[begin].Name
		switch n := end - begin; {
		case n == 2:
			names += " and " + all[end-1].Name
		case n > 2:
			names = fmt.Sprintf("%d servers, %s to %s,", n, names, all[end-1].Name)
		}
		lines = append(lines, "would launch "+names+of)
		begin = end
	}
	return lines
}

// ingredients are what a server is launched with.
func ingredients(s api.LaunchResolved) string {
	text := " with flavor " + s.FlavorID
	if s.ImageID != nil {
		text += ", image " + *s.ImageID
	}
	if networks := domain.Deref(s.NetworkIds); len(networks) > 0 {
		text += ", " + output.Plural(len(networks), "network") + " " + strings.Join(networks, ", ")
	}
	return text
}
