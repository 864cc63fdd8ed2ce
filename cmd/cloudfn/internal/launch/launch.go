// Package launch holds the command that launches servers.
package launch

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/orders"
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
  cloudfn launch course --flavor m1.small --image cirros --network private --count 3 --lease 2d --before-end 1h \
    --on-end stop
  cloudfn launch --file order.yaml --dry-run`,
		Annotations: cli.Calls("launch", "getOrder"), Args: cobra.MaximumNArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
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
		ID: l.id, Connection: l.connection(), Limit: l.wait.Limit, Launched: &launched, Resend: l.send,
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
