package launch

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/leases"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// leaseFields are the fields of an order that the flags of its lease set, but for its end and durations.
var leaseFields = []string{"lease-name:lease.name", "lease-start:lease.start", "on-end:lease.on_end"}

// leaseFlags add the order's lease and the reservation whose hosts it uses.
func leaseFlags(a *cli.App, cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.String("lease", "",
		"lease the servers for so long: 8h, 2d, P1M (a month); or until a time: 2027-01-01T18:00:00Z")
	cli.Choices(cmd, "lease", "8h", "2d", "1w", "P1M")
	a.UntilOrNow(cmd, "lease-start", "when the lease begins, which shelves the servers until then (default now)")
	flags.String("lease-name", "", "the lease's name (default NAME)")
	leases.WarningFlag(cmd, "the lease's end")
	flags.String("on-end", "", "what happens to the servers at the lease's end: "+strings.Join(domain.OnEnds(), ", "))
	cli.Choices(cmd, "on-end", domain.OnEnds()...)
	flags.String("reservation", "", "launch on the hosts of this reservation")
	cli.Choices(cmd, "lease-name")
	cli.Choices(cmd, "reservation")
}

// addLease adds what the flags say of the lease's end and durations to the fields that were given.
func addLease(cmd *cobra.Command, given map[string]any) error {
	lease, ok := given["lease"].(map[string]any)
	if !ok {
		lease = map[string]any{}
	}
	end, _ := cmd.Flags().GetString("lease")
	if at, err := time.Parse(time.RFC3339, end); err == nil {
		lease["end"] = at.UTC().Format(time.RFC3339)
	} else if err := leases.AddPeriod(cmd, lease, "lease", "duration"); err != nil {
		return fmt.Errorf("%w; or until when: a time such as 2027-01-01T18:00:00Z", err)
	}
	if err := leases.AddWarning(cmd, lease); err != nil {
		return err
	}
	if len(lease) == 0 {
		return nil
	}
	if end == "" {
		return exit.Usagef("--lease is missing: say for how long, such as 8h, or until when")
	}
	given["lease"] = lease
	return nil
}
