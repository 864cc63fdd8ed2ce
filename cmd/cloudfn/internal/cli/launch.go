package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
)

// launchFlags are what a launch is told besides what is ordered, which is read off the flags by their names.
type launchFlags struct {
	file, userData, keyFile string
	dryRun                  bool
	wait                    waiting
}

func (a *app) launchCommand() *cobra.Command {
	var f launchFlags
	cmd := &cobra.Command{
		Use:   "launch NAME --flavor FLAVOR --image IMAGE",
		Short: "Launch servers",
		Long: `Launch one or more servers, as one order. None is lost or made twice, whatever breaks meanwhile: the order has an id before
it is sent, and what is sent again under the same id is the same order.

With --wait, Ctrl-C leaves the launch running and says how to follow it.`,
		Example: `  cloudfn launch web --flavor m1.small --image cirros --network private --wait
  cloudfn launch worker --count 3 --min-vcpus 2 --min-ram-mb 2048 --image cirros --on-failure rollback --wait
  cloudfn launch web --flavor m1.small --image cirros --generate-key web.key --user-data cloud-init.yaml
  cloudfn launch --file order.yaml --dry-run`,
		Annotations: calls("launch", "getOrder"),
		Args:        cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := a.newLaunch(cmd, args, f)
			if err != nil {
				return err
			}
			if f.dryRun {
				return a.dryRun(cmd.Context(), l)
			}
			return a.launch(cmd.Context(), l)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	flags := cmd.Flags()
	orderFlags(flags)
	flags.StringVar(&f.file, "file", "", "the order as JSON or YAML, as the API takes it (- for stdin); flags go before it")
	flags.StringVar(&f.userData, "user-data", "", "file with what cloud-init gets (- for stdin)")
	flags.StringVar(&f.keyFile, "generate-key", "", "make an SSH key pair, and write its private key to this new file")
	flags.BoolVar(&f.dryRun, "dry-run", false, "launch nothing, and say what would make the launch fail")
	f.wait.flags(cmd, "all servers are there, or will not be")
	cmd.MarkFlagsMutuallyExclusive("key-name", "generate-key")
	cmd.MarkFlagsMutuallyExclusive("dry-run", "wait")
	a.completeOrder(cmd)
	return cmd
}

// launch is an order that is to be sent.
type launch struct {
	flags launchFlags
	order order
	id    string
	again string // the command that sends the same again
}

func (a *app) newLaunch(cmd *cobra.Command, args []string, f launchFlags) (launch, error) {
	o, err := a.readOrder(cmd, args, f)
	if err != nil {
		return launch{}, err
	}
	l := launch{flags: f, order: o}
	l.id, err = o.identify()
	l.again = a.commandLine(cmd.Flags().Changed("id"), l.id)
	return l, err
}

// launch sends an order, and waits for it if that is asked for.
func (a *app) launch(ctx context.Context, l launch) error {
	client, err := a.api(ctx)
	if err != nil {
		return err
	}
	key, err := newKeyFile(l.flags.keyFile)
	if err != nil {
		return err
	}
	defer key.close()
	began := a.now()
	order, err := a.place(ctx, client, l)
	if err != nil {
		return err
	}
	lost := key.keep(order.Value)
	if l.flags.wait.on {
		l.flags.wait.limit -= a.now().Sub(began)
		if order, err = a.awaitPlaced(ctx, client, l, order); err != nil {
			return both(err, lost)
		}
	}
	if err := a.printOrder(order); err != nil {
		return both(err, lost)
	}
	if err := a.outcome(order.Value); err != nil {
		return both(err, lost)
	}
	if order.Value.Status == api.OrderStatusRunning {
		fmt.Fprintln(a.err, "The launch goes on:", a.followHint(l.id, l.connection()))
	}
	return lost
}

// both says what became of the launch, and then that there is no private key, if that is so: nobody else will say it.
func both(err, lost error) error {
	if lost == nil {
		return err
	}
	return fmt.Errorf("%w; %w", err, lost)
}

func (a *app) awaitPlaced(ctx context.Context, client *api.Client, l launch, placed api.Item[api.Order]) (api.Item[api.Order], error) {
	p := pursuit{client: client, id: l.id, connection: l.connection(), limit: l.flags.wait.limit, first: &placed}
	p.resend = func(ctx context.Context) (api.Item[api.Order], error) { return a.place(ctx, client, l) }
	settled, err := a.await(ctx, p)
	switch {
	case err == nil:
	case errors.Is(err, errInterrupted), errors.Is(err, context.DeadlineExceeded): // which say it themselves
		return settled, err
	default: // the token has ended, say: nothing that was shown has the order's id
		return settled, fmt.Errorf("%w. The order is placed: %s", err, a.followHint(l.id, l.connection()))
	}
	if c := settled.Value.Callback; c != nil && placed.Value.Callback != nil {
		c.Secret = placed.Value.Callback.Secret
	}
	settled.Raw = withCallback(settled.Raw, placed.Value.Callback)
	return settled, nil
}

func (l launch) connection() string { return l.order.text("connection_id") }
