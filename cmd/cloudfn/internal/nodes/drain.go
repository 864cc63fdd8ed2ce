package nodes

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
	"github.com/cloudfn/cloudfn/shared/domain"
)

func cordon(a *cli.App) *cobra.Command {
	cmd := noun.One(a, "cordon", "Keep new servers off a host", "cordonNode",
		func(cmd *cobra.Command, name string) error {
			body := cli.Body(cmd.Flags(), "reason", "force")
			return noun.Send(cmd.Context(), a, http.MethodPost, noun.URL(name, "cordon"), body)
		})
	cmd.Long = "Keep new servers off a host. Its servers stay. A host that someone else has disabled stays theirs."
	cmd.Example = "  cloudfn nodes cordon compute-1 --reason 'a disk fails'"
	cmd.Flags().String("reason", "", "why: Nova's list of services shows it")
	cmd.Flags().Bool("force", false, "also the last ordinary or reservable host of its zone that takes servers")
	return cmd
}

func uncordon(a *cli.App) *cobra.Command {
	cmd := noun.Act(a, "uncordon", "Let servers onto a cordoned host again", "uncordonNode")
	cmd.Long = "Let servers onto a host again that cloudfn has cordoned. One that someone else has disabled stays so."
	return cmd
}

func cancelDrain(a *cli.App) *cobra.Command {
	cmd := noun.Act(a, "cancel-drain", "Stop moving servers off a host", "cancelDrain")
	cmd.Long = `Stop moving servers off a host. Those that Nova moves already are followed to their end. The host stays
cordoned until nodes uncordon.`
	return cmd
}

func drain(a *cli.App) *cobra.Command {
	wait := cli.Wait{Limit: time.Hour}
	cmd := noun.One(a, "drain", "Cordon a host, and move its servers off", "drainNode",
		func(cmd *cobra.Command, name string) error {
			body := cli.Body(cmd.Flags(), "parallel", "force")
			if err := cli.AddPeriod(cmd, body, "server-timeout", "server_timeout"); err != nil {
				return err
			}
			path := noun.URL(name, "drain")
			isDry, _ := cmd.Flags().GetBool("dry-run")
			if isDry {
				path += "?dry_run=true"
			}
			n, err := api.Send[api.Node](cmd.Context(), a.API(), http.MethodPost, path, body)
			if err != nil {
				return err
			}
			if isDry || !wait.IsOn {
				return noun.Print(a, n)
			}
			n, err = follow(cmd.Context(), a, n, wait)
			if err != nil {
				return err
			}
			if err := noun.Print(a, n); err != nil {
				return err
			}
			return ended(a, n.Value)
		})
	cmd.Annotations = cli.Calls("drainNode", "getNode")
	cmd.Long = `Cordon a host, and move its servers to other hosts: those that run by live migration, those that are
stopped by cold migration. What cannot be moved is skipped, with the reason.

With --wait the exit code is 0 only when no server is left on the host. The drain goes on when you interrupt it: nodes
cancel-drain stops it.`
	cmd.Example = "  cloudfn nodes drain compute-1 --dry-run\n  cloudfn nodes drain compute-1 --parallel 4 --wait"
	flags := cmd.Flags()
	flags.Int("parallel", 0, "how many servers move at a time: 1 to 20 (default as cloudfn is set up)")
	flags.String("server-timeout", "", "for how long one server may move: 10m, 1h, at most 24h")
	flags.Bool("force", false, "also the last ordinary or reservable host of its zone that takes servers")
	flags.Bool("dry-run", false, "only show what would be done with each server")
	cli.Choices(cmd, "server-timeout", "10m", "1h")
	wait.Flags(cmd, "no server moves any more")
	return cmd
}

// follow reads a node until its drain has ended, and shows the progress on stderr.
func follow(ctx context.Context, a *cli.App, n api.Item[api.Node], wait cli.Wait) (api.Item[api.Node], error) {
	name := n.Value.Name
	return cli.Waiter[api.Item[api.Node]]{
		Get:  func(ctx context.Context) (api.Item[api.Node], error) { return noun.Get(ctx, a, name, nil) },
		Done: func(n api.Item[api.Node]) (bool, error) { return isOver(n.Value.Drain), nil },
		Rows: func(n api.Item[api.Node]) []output.Row { return rows(a, n.Value) },
		Remaining: func(n api.Item[api.Node]) string {
			return fmt.Sprintf("the drain of %[1]s is %[2]s; follow it by %[3]s nodes show %[1]s, stop it by %[3]s "+
				"nodes cancel-drain %[1]s", name, drainText(n.Value.Drain), a.Name)
		},
	}.Wait(ctx, a, wait, n)
}

// isOver reports whether nothing of a drain moves any more. What Nova moves when it is cancelled still does.
func isOver(d *api.Drain) bool {
	return d == nil || string(d.State) != string(domain.DrainRunning) && len(d.Moving) == 0
}

// meterWidth is that of the bar of a drain, in cells.
const meterWidth = 24

// rows are the drain, with a bar at a terminal, and its servers. Those that wait, and at a terminal those that are
// done, are only counted.
func rows(a *cli.App, n api.Node) []output.Row {
	d := n.Drain
	if d == nil {
		return nil
	}
	first := output.Row{Name: n.Name, State: string(d.State), Note: drainText(d), IsFinal: isOver(d)}
	hasBar := a.ErrSize != nil
	if hasBar {
		total := d.Done + d.Left + len(d.Skipped)
		bar := output.Bars{ASCII: !a.HasUTF8()}.Meter(d.Done+len(d.Skipped), total, meterWidth)
		first.Note = fmt.Sprintf("%s %d/%d, %d skipped", bar, d.Done+len(d.Skipped), total, len(d.Skipped))
	}
	all := []output.Row{first}
	for _, s := range domain.Deref(d.Servers) {
		status := domain.DrainServerStatus(s.State)
		isFinal := status == domain.DrainMoved || status == domain.DrainSkipped
		if status == domain.DrainPending || hasBar && isFinal {
			continue
		}
		row := output.Row{Name: s.Name + " " + s.ServerID, State: string(s.State), IsFinal: isFinal}
		switch {
		case status == domain.DrainSkipped:
			row.Note = domain.Deref(s.Reason)
		case domain.Deref(s.Target) != "":
			row.Note = "now on " + *s.Target
		case s.Method != nil:
			row.Note = string(*s.Method)
		}
		all = append(all, row)
	}
	return all
}

// ended is the failure of a drain that has left servers on the host.
func ended(a *cli.App, n api.Node) error {
	d := n.Drain
	if d == nil {
		return exit.Failedf("%s was uncordoned before its drain ended", n.Name)
	}
	for _, s := range d.Skipped {
		a.Notef("%s %s stays: %s", s.Name, s.ServerID, s.Reason)
	}
	switch {
	case string(d.State) != string(domain.DrainDone):
		return exit.Failedf("the drain of %s is %s: %s", n.Name, d.State, domain.Deref(d.Reason))
	case len(d.Skipped) > 0:
		return exit.Failedf("%s of %s cannot be moved", output.Count(len(d.Skipped), "server"), n.Name)
	}
	return nil
}
