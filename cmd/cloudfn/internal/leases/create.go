package leases

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/servers"
	"github.com/cloudfn/cloudfn/shared/domain"
)

func create(a *cli.App) *cobra.Command {
	var f follow
	cmd := &cobra.Command{
		Use:   "create NAME (--hosts N | --instance SERVER) (--end WHEN | --duration TIME)",
		Short: "Create a lease", Args: cobra.ExactArgs(1),
		Long: `Reserve hosts, instances or both for a period.

A lease of hosts gives the project whole hosts: from its start only servers that are launched with the reservation land
on them. A lease of instances promises time, not capacity: it shelves them until its start, starts them then, and does
what --on-end says at the end.`,
		Example: `  cloudfn leases create workshop --hosts 2..3 --vcpus 16 --start 7d --duration 2d --before-end 1h
  cloudfn leases create nightly --instance web --start 2027-01-01T20:00:00Z --duration 8h --on-end stop
  cloudfn leases create fast --hosts 1 --duration 8h \
    --capability 'cpu_info:arch = x86_64' --capability 'trait:HW_CPU_X86_AVX2 = required' --capability 'vcpus >= 32'`,
		Annotations: cli.Calls("createLease"), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			body, err := request(cmd, args[0])
			if err == nil {
				err = reserveServers(cmd.Context(), a, body)
			}
			if err != nil {
				return err
			}
			if isDry, _ := cmd.Flags().GetBool("dry-run"); isDry {
				return leases.Send(cmd.Context(), a, http.MethodPost, leases.Path+"?dry_run=true", body)
			}
			return f.send(cmd.Context(), a, http.MethodPost, leases.Path, api.Any, body,
				append(ended, api.LeaseStatusActive)...)
		},
	}
	termFlags(a, cmd)
	a.Until(cmd, "end", "when it ends: 24h or 7d from now, or a time such as 2027-01-01T18:00:00Z")
	hostFlags(cmd)
	flags := cmd.Flags()
	flags.String("hosts", "", "how many hosts: N, or N..M for at least N and at most M")
	cli.Choices(cmd, "hosts")
	flags.StringSlice("flavor", nil, "flavors for the hosts, by id or name (default every public one that fits)")
	cli.Choices(cmd, "flavor")
	flags.StringSlice("instance", nil, "instances: servers, by their names or ids")
	a.CompleteFlag(cmd, "instance", func(ctx context.Context, _ []string, _ string) ([]string, error) {
		return instances(ctx, a)
	})
	flags.Bool("dry-run", false, "only show the lease as it would be, or why it cannot be")
	f.flags(cmd, "it is active")
	return cmd
}

// hostFlags add what each host must have.
func hostFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.Int("vcpus", 0, "vCPUs of each host, at least")
	flags.Int("ram-mb", 0, "memory of each host, at least")
	flags.Int("disk-gb", 0, "disk of each host, at least")
	flags.String("zone", "", "the availability zone of the hosts")
	flags.String("region", "", "the region of the hosts")
	flags.StringSlice("trait", nil, "traits that each host must have")
	flags.StringArray("capability", nil, "what each host must have, such as 'vcpus >= 32'; may be repeated")
	for _, flag := range []string{"vcpus", "ram-mb", "disk-gb", "zone", "region", "trait", "capability"} {
		cli.Choices(cmd, flag)
	}
}

// hostFields are the fields of a reservation of hosts that flags set.
var hostFields = []string{
	"vcpus", "ram-mb", "disk-gb", "zone", "region", "trait:traits", "capability:capabilities", "flavor:flavors",
	"heal",
}

// request is the body of a request for a lease.
func request(cmd *cobra.Command, name string) (map[string]any, error) {
	flags := cmd.Flags()
	body := cli.Body(flags, termFields[1:]...)
	body["name"] = name
	if err := addPeriods(cmd, body); err != nil {
		return nil, err
	}
	if body["end"] == nil && body["duration"] == nil {
		return nil, exit.Usagef("give the end of the lease by --end, or its --duration")
	}
	reservations := []map[string]any{}
	hosts, _ := flags.GetString("hosts")
	wanted := cli.Body(flags, hostFields...)
	switch {
	case hosts != "":
		least, most, err := hostRange(hosts)
		if err != nil {
			return nil, err
		}
		wanted["type"], wanted["min"], wanted["max"] = domain.HostReservation, least, most
		reservations = append(reservations, wanted)
	case len(wanted) > 0:
		return nil, exit.Usagef("--hosts is missing: the other flags say what hosts are wanted")
	}
	instances, _ := flags.GetStringSlice("instance")
	for _, id := range instances {
		reservations = append(reservations, map[string]any{"type": domain.InstanceReservation, "instance_id": id})
	}
	if len(reservations) == 0 {
		return nil, exit.Usagef("give what is to be reserved: --hosts, --instance, or both")
	}
	body["reservations"] = reservations
	return body, nil
}

// reserveServers replaces what the user has given for instances by their ids, or those of servers that are to be
// connected first.
func reserveServers(ctx context.Context, a *cli.App, body map[string]any) error {
	reservations, _ := body["reservations"].([]map[string]any)
	for _, r := range reservations {
		given, ok := r["instance_id"].(string)
		if !ok {
			continue
		}
		server, err := servers.Find(ctx, a, given)
		switch {
		case cli.IsID(given) && api.HasStatus(err, http.StatusNotFound): // the API explains it
		case err != nil:
			return err
		case server.Instance != nil:
			r["instance_id"] = server.Instance.ID
		default:
			delete(r, "instance_id")
			r["server_id"] = server.ID
		}
	}
	return nil
}

// hostRange reads N, or N..M.
func hostRange(text string) (least, most int, err error) {
	first, last, isRange := strings.Cut(text, "..")
	if !isRange {
		last = first
	}
	least, err = strconv.Atoi(first)
	if err == nil {
		most, err = strconv.Atoi(last)
	}
	if err != nil || least < 1 || most < least {
		return 0, 0, exit.Usagef("--hosts is %q: it must be N, or N..M with M not below N", text)
	}
	return least, most, nil
}

// instances completes the ids of instances.
func instances(ctx context.Context, a *cli.App) ([]string, error) {
	list := api.List[api.Server]{Path: "/v1/servers", Key: "servers", Query: url.Values{"tracked": {"true"}}}
	found, err := list.Read(ctx, a.API())
	var ids []string
	for _, s := range found {
		if s.Value.Instance != nil {
			ids = append(ids, s.Value.Instance.ID+"\t"+s.Value.Name+", "+string(s.Value.Instance.State))
		}
	}
	return ids, err
}
