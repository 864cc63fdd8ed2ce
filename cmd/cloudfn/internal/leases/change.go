package leases

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/servers"
	"github.com/cloudfn/cloudfn/shared/domain"
)

func create(a *cli.App) *cobra.Command {
	var f follow
	cmd := &cobra.Command{
		Use:   "create NAME (--hosts N | --instance SERVER [--volume VOLUME]) (--end WHEN | --duration TIME)",
		Short: "Create a lease", Args: cobra.ExactArgs(1),
		Long: `Reserve hosts, instances with volumes, or both for a period.

A lease of hosts gives the project whole hosts: from its start only servers that are launched with the reservation land
on them. A lease of instances promises time, not capacity: it shelves them until its start, starts them then, and does
what --on-end says at the end.

--volume attaches a volume to an instance once that runs: a new one, or an existing one. At the end, after what --on-end
says, the volume is detached and kept; on-end=snapshot makes a snapshot of it, too, and on-end=delete deletes it.`,
		Example: `  cloudfn leases create workshop --hosts 2..3 --vcpus 16 --start 7d --duration 2d --before-end 1h
  cloudfn leases create nightly --instance web --start 2027-01-01T20:00:00Z --duration 8h --on-end stop
  cloudfn leases create batch --instance web --volume size=20,name=data,on-end=snapshot --duration 8h
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
	flags.StringSlice("flavor", nil, "flavors for the hosts, by id or name (default every public one that fits)")
	flags.StringSlice("instance", nil, "instances: servers, by their names or ids")
	a.CompleteFlag(cmd, "instance", instances(a))
	flags.StringArray("volume", nil, "a volume for an instance: an existing one, by id, or the size in GB of a new "+
		"one; or KEY=VALUE,... of size, type, name, id, on-end (keep, snapshot, delete), instance (the server that "+
		"gets it, if there are several); may be repeated")
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
	cli.SetBy(flags, "reservations[0].", hostFields...)
	cli.SetBy(flags, "reservations[0].", "hosts:min", "hosts:max")
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
		cli.SetBy(flags, "", fmt.Sprintf("instance:reservations[%d]", len(reservations)))
		reservations = append(reservations, map[string]any{"type": domain.InstanceReservation, "instance_id": id})
	}
	volumes, err := volumesOf(cmd, len(reservations))
	if err != nil {
		return nil, err
	}
	if reservations = append(reservations, volumes...); len(reservations) == 0 {
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
func instances(a *cli.App) cli.Finder {
	return cli.Noun[api.Server]{Path: "/v1/servers", Key: "servers", Offer: func(s api.Server) string {
		i := domain.Deref(s.Instance)
		return i.ID + "\t" + s.Name + ", " + string(i.State)
	}}.Finder(a, url.Values{"tracked": {"true"}}, 0)
}

// termFields are the fields of a lease that flags set. Durations are not among them: see addPeriods.
var termFields = []string{"name", "start", "end", "on-end", "enforce"}

// termFlags add when a lease begins, how long it lasts, and what happens at its end.
func termFlags(a *cli.App, cmd *cobra.Command) {
	a.UntilOrNow(cmd, "start",
		"when it begins: 24h from now, a time such as 2027-01-01T09:00:00Z, or now, as new leases do")
	flags := cmd.Flags()
	flags.String("heal", "", "when a host fails: auto (another takes its place) or manual (wait for it)")
	cli.Choices(cmd, "heal", string(domain.HealAuto), string(domain.HealManual))
	flags.String("duration", "", "or how long it lasts: "+cli.PeriodForms)
	cli.Choices(cmd, "duration", "8h", "2d", "1w", "P1M")
	WarningFlag(cmd, "the end")
	flags.String("on-end", "", "what happens to the servers at the end: "+strings.Join(domain.OnEnds(), ", "))
	cli.Choices(cmd, "on-end", domain.OnEnds()...)
	flags.Bool("enforce", false, "shelve an instance again that its owner starts before the lease begins")
}

// addPeriods adds the durations that were given to a request, as ISO 8601 has them.
func addPeriods(cmd *cobra.Command, body map[string]any) error {
	if err := cli.AddPeriod(cmd, body, "duration", "duration"); err != nil {
		return err
	}
	return AddWarning(cmd, body)
}

// warningFlag is for when a lease warns of its end.
const warningFlag = "before-end"

// WarningFlag adds the flag of AddWarning.
func WarningFlag(cmd *cobra.Command, what string) {
	cmd.Flags().String(warningFlag, "", "warn so long before "+what+", by an event: 30m, 1h, 1d, or none (default 1h)")
	cli.Choices(cmd, warningFlag, "30m", "1h", "1d", "none")
}

// AddWarning adds when a lease warns of its end, if that was given. Without it the API takes its default.
func AddWarning(cmd *cobra.Command, body map[string]any) error {
	const noWarning = "PT0S"
	if text, _ := cmd.Flags().GetString(warningFlag); text == "none" || text == noWarning {
		body["before_end"] = noWarning
		return nil
	}
	return cli.AddPeriod(cmd, body, warningFlag, "before_end")
}

func extend(a *cli.App) *cobra.Command {
	var f follow
	cmd := leases.One(a, "extend", "Move the end of a lease", "changeLease", func(cmd *cobra.Command, id string) error {
		body, version := cli.Body(cmd.Flags(), "end"), api.Any
		by, _ := cmd.Flags().GetString("by")
		if (by == "") == (len(body) == 0) {
			return exit.Usagef("give the new end by --end, or by --by how much later it is")
		}
		if by != "" {
			period, err := cli.ParsePeriod(by)
			if err != nil {
				return exit.Usagef("--by: %w", err)
			}
			found, err := leases.Get(cmd.Context(), a, id, nil)
			if err != nil {
				return err
			}
			body["end"], version = period.AddTo(found.Value.End), found.ETag
		}
		return f.send(cmd.Context(), a, http.MethodPatch, leases.URL(id), version, body)
	})
	f.watchFlag(cmd)
	cmd.Annotations = cli.Calls("changeLease", "getLease")
	cmd.Long = `Move the end of a lease. With --by it fails if someone else changes the lease meanwhile. --end may also
be earlier than the present end. When too few hosts are free
for longer, the lease stays as it is, and the error says from when they are.`
	cmd.Example = "  cloudfn leases extend LEASE --by 2h\n  cloudfn leases extend LEASE --end 2027-01-01T18:00:00Z"
	a.UntilOrNow(cmd, "end", "the new end: 24h or 7d from now, now, or a time such as 2027-01-01T18:00:00Z")
	cmd.Flags().String("by", "", "how much later than its present end: "+cli.PeriodForms)
	cli.Choices(cmd, "by", "1h", "8h", "1d", "P1M")
	return cmd
}

func update(a *cli.App) *cobra.Command {
	cmd := leases.One(a, "update", "Change a lease", "changeLease", func(cmd *cobra.Command, id string) error {
		body := cli.Body(cmd.Flags(), append(termFields, "heal")...)
		if err := addPeriods(cmd, body); err != nil {
			return err
		}
		if volumes, _ := cmd.Flags().GetStringArray("volume"); len(volumes) > 0 {
			found, err := leases.Get(cmd.Context(), a, id, nil)
			if err != nil {
				return err
			}
			if body["reservations"], err = otherEnds(found.Value, volumes); err != nil {
				return err
			}
			cli.SetBy(cmd.Flags(), "", "volume:reservations")
		}
		if len(body) == 0 {
			return exit.Usagef("nothing is to be changed: %s leases update -h lists flags", a.Name)
		}
		return leases.Send(cmd.Context(), a, http.MethodPatch, leases.URL(id), body)
	})
	cmd.Annotations = cli.Calls("changeLease", "getLease")
	cmd.Long = `Change a lease. Without a flag a field stays as it is. Before its start all can be changed; afterwards
the end, the warning, what happens at the end or when a host fails, and the name.`
	cmd.Example = `  cloudfn leases update LEASE --on-end delete --before-end none
  cloudfn leases update LEASE --volume name=data,on-end=keep`
	cmd.Flags().StringArray("volume", nil, "what happens to a volume at the end: KEY=VALUE,... of on-end (keep, "+
		"snapshot, delete) and of id or name, without which all volumes of the lease are meant; may be repeated")
	termFlags(a, cmd)
	a.UntilOrNow(cmd, "end", "when it ends: 24h or 7d from now, now, or a time such as 2027-01-01T18:00:00Z")
	cmd.Flags().String("name", "", "a name, for people")
	return cmd
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
			period, err := cli.ParsePeriod(text)
			if err != nil {
				return exit.Usagef("--duration: %w", err)
			}
			query.Set("duration", period.String())
			return cli.Noun[api.Slot]{
				Path: leases.Path + "/availability", Key: "slots", Table: slotTable, HasNoPages: true,
			}.PrintList(cmd, a, query)
		},
	}
	hostFlags(cmd)
	cmd.Flags().Int("hosts", 1, "how many hosts at the same time")
	cmd.Flags().String("duration", "", "for how long: "+cli.PeriodForms)
	cli.Choices(cmd, "duration", "8h", "2d", "1w", "P1M")
	a.Until(cmd, "from", "not before: 24h or 7d from now, or a time such as 2027-01-01T09:00:00Z (default now)")
	a.Until(cmd, "until", "not after, in the same form (default in a year)")
	cli.LimitFlag(cmd, 10)
	_ = cmd.MarkFlagRequired("duration")
	return cmd
}

func allocations(a *cli.App) *cobra.Command {
	cmd := cli.Noun[api.Allocation]{
		Path: leases.Path + "/allocations", Key: "allocations",
		Table: output.Table[api.Allocation]{
			Columns: []string{
				"HOST", "START", "END", "PROJECT:project_id", "LEASE:lease_id", "RESERVATION+:reservation_id",
				"PREPARED+:prepared_at", "RELEASED+:released_at",
			},
			Name: func(h api.Allocation) string { return h.Host },
		},
	}.List(a, "List which host is whose, and when, as the cloud's admin", "listAllocations", "from", "until")
	cmd.Use, cmd.Aliases, cmd.Example = "allocations", nil, "  cloudfn leases allocations --until 30d"
	a.Until(cmd, "from", "not over before: 24h or 7d from now, or a time such as 2027-01-01T09:00:00Z (default now)")
	a.Until(cmd, "until", "begun before, in the same form (default in a year)")
	cli.LimitFlag(cmd, 0)
	return cmd
}

func release(a *cli.App) *cobra.Command {
	cmd := leases.Act(a, "release", "End a lease and leave its servers where they are, as the cloud's admin",
		"releaseLease")
	cmd.Long = `End a lease of any project now, as the cloud's admin. Its servers are not touched: they stay.
Its hosts are returned; those with servers are not reservable until the servers are removed. A lease of another project
is given by its id.`
	cmd.Example = "  cloudfn leases release 019b7c5e-7f60-7a88-b14f-6d0e5a4c3e55"
	return cmd
}
