package leases

import (
	"net/http"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
)

// slots is what availability answers: it has no pages.
type slots struct {
	Slots []api.Item[api.Slot] `json:"slots"`
}

var slotTable = output.Table[api.Slot]{
	Columns: []string{"START", "END", "HOSTS"},
	Name:    func(s api.Slot) string { return s.Start.UTC().Format("2006-01-02T15:04:05Z") },
}

func availability(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use: "availability --duration TIME", Short: "Find when hosts are free", Args: cobra.NoArgs,
		Long: `List the periods in which so many hosts are free for so long, the earliest first. END is until when
they stay free: a lease may end earlier.`,
		Example: "  cloudfn leases availability --hosts 3 --vcpus 32 --duration 2d --from 7d\n" +
			"  cloudfn leases availability --capability 'hw:cpu_vendor = intel' --duration P1M",
		Annotations: cli.Calls("findFreeHosts"), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			query := cli.Query(cmd.Flags(), "hosts", "vcpus", "ram-mb", "disk-gb", "zone", "region", "trait:traits",
				"capability:capabilities", "from", "until")
			text, _ := cmd.Flags().GetString("duration")
			period, err := ParsePeriod(text)
			if err != nil {
				return exit.Usagef("--duration: %w", err)
			}
			query.Set("duration", period.String())
			if limit := cli.Limit(cmd); limit > 0 {
				query.Set("limit", strconv.Itoa(limit))
			}
			found, err := api.Get[slots](cmd.Context(), a.API(), leases.Path+"/availability", query)
			if err != nil {
				return err
			}
			return output.List(&a.Print, found.Value.Slots, slotTable)
		},
	}
	hostFlags(cmd)
	cmd.Flags().Int("hosts", 1, "how many hosts at the same time")
	cli.Choices(cmd, "hosts")
	cmd.Flags().String("duration", "", "for how long: "+periodForms)
	cli.Choices(cmd, "duration", "8h", "2d", "1w", "P1M")
	a.Until(cmd, "from", "not before: 24h or 7d from now, or a time such as 2027-01-01T09:00:00Z (default now)")
	a.Until(cmd, "until", "not after, in the same form (default in a year)")
	cli.LimitFlag(cmd, 10)
	_ = cmd.MarkFlagRequired("duration")
	return cmd
}

var allocationTable = output.Table[api.Allocation]{
	Columns: []string{
		"HOST", "START", "END", "PROJECT:project_id", "LEASE:lease_id", "RESERVATION+:reservation_id",
		"PREPARED+:prepared_at", "RELEASED+:released_at",
	},
	Name: func(h api.Allocation) string { return h.Host },
}

func allocations(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use: "allocations", Short: "List which host is whose, and when, as the cloud's admin", Args: cobra.NoArgs,
		Example:     "  cloudfn leases allocations --until 30d",
		Annotations: cli.Calls("listAllocations"), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			list := api.List[api.Allocation]{
				Path: leases.Path + "/allocations", Key: "allocations", Query: cli.Query(cmd.Flags(), "from", "until"),
				Limit: cli.Limit(cmd),
			}
			found, err := list.Read(cmd.Context(), a.API())
			if err != nil {
				return err
			}
			return output.List(&a.Print, found, allocationTable)
		},
	}
	a.Until(cmd, "from", "not over before: 24h or 7d from now, or a time such as 2027-01-01T09:00:00Z (default now)")
	a.Until(cmd, "until", "begun before, in the same form (default in a year)")
	cli.LimitFlag(cmd, 0)
	return cmd
}

func release(a *cli.App) *cobra.Command {
	cmd := leases.One(a, "release", "End a lease and leave its servers where they are, as the cloud's admin",
		"releaseLease", func(cmd *cobra.Command, id string) error {
			return leases.Send(cmd.Context(), a, http.MethodPost, leases.URL(id, "release"), nil)
		})
	cmd.Long = `End a lease of any project now, as the cloud's admin. Its servers are not touched: they stay.
Its hosts are returned, and those with servers are not reservable until the servers are gone. A lease of another project
is given by its id.`
	cmd.Example = "  cloudfn leases release 019b7c5e-7f60-7a88-b14f-6d0e5a4c3e55"
	return cmd
}
