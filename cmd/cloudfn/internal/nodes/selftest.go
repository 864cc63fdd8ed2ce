package nodes

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
)

var testTable = output.Table[api.Node]{
	Columns: []string{"NAME", "ISOLATION", "TESTED_AT", "ISOLATION_DETAIL"},
	Name:    func(n api.Node) string { return n.Name },
}

func selfTest(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use: "self-test [NODE]", Short: "Test whether other servers stay off reservable hosts",
		Long: `Boot a tiny server without the trait of reservable hosts on one of them, and expect that Nova refuses it.
Without NODE it is the first idle one. The exit code is 1 when the cloud does not isolate them; ISOLATION_DETAIL then
has the line that nova.conf needs.`,
		Example: "  cloudfn nodes self-test\n  cloudfn nodes self-test compute-3",
		Args:    cobra.MaximumNArgs(1), Annotations: cli.Calls("testNode"),
		ValidArgsFunction: a.Complete(1, noun.Finder(a, nil, 0)),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := hostToTest(cmd.Context(), a, args)
			if err != nil {
				return err
			}
			show, stop := a.Progress(cmd.Context())
			show(output.Row{Name: name, State: "testing", Note: "booting a server that Nova must reject"})
			found, err := api.Send[api.Node](cmd.Context(), a.API(), http.MethodPost, noun.URL(name, "self-test"), nil)
			stop()
			err = noun.Near(cmd.Context(), a, name, err)
			if err == nil {
				err = output.One(&a.Print, found, testTable)
			}
			if err == nil && found.Value.Isolation != api.NodeIsolationProven {
				err = exit.Failedf("the cloud does not keep other servers off reservable hosts")
			}
			return err
		},
	}
}

// probeMargin is how long before its next lease a host is no longer tested: the API's own margin.
const probeMargin = 10 * time.Minute

// hostToTest is the host that is given, or the first one on which a test can be made.
func hostToTest(ctx context.Context, a *cli.App, given []string) (string, error) {
	if len(given) > 0 {
		return given[0], nil
	}
	found, err := noun.Find(ctx, a, url.Values{"schedulable": {"true"}, "status": {"up"}}, 0)
	if err != nil {
		return "", err
	}
	for _, n := range found {
		isFree := n.Value.Lease == nil || n.Value.Lease.Start.After(a.Now().Add(probeMargin))
		if string(n.Value.Reservable) == "yes" && isFree {
			return n.Value.Name, nil
		}
	}
	return "", exit.Failedf("no reservable host is idle and up: make one reservable by cloudfn nodes reservable NODE")
}
