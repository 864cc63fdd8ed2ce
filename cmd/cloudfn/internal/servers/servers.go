// Package servers holds the commands that list servers and act on them.
package servers

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// servers is what the commands share.
type servers struct {
	*cli.App
	connection string // the id of the connection that requests go through; "" = none
}

// Command holds the commands for servers.
func Command(a *cli.App) *cobra.Command {
	s := &servers{App: a}
	c := cli.Group("servers", "List, show and act on servers",
		s.listCommand(), s.showCommand(), s.historyCommand(), s.startCommand(), s.stopCommand(), s.rebootCommand(),
		s.shelveCommand(), s.unshelveCommand(), s.snapshotCommand(), s.consoleCommand(), s.deleteCommand(),
		s.deployCommand(), s.connectCommand(), s.disconnectCommand(), s.reusableCommand(), s.actionCommand())
	c.Aliases = []string{"server"}
	c.Long = `List, show and act on servers. SERVER is the id of a server, or of the instance that it is tracked as,
or a name that only one server has. -o name prints for each server what other commands take: its name, or its id where
the name is not enough.`
	a.ConnectionFlagOf(c, c.PersistentFlags(), &s.connection, "id of the connection to act through")
	return c
}

// oneCommand is a command for one server. run gets the server's id.
func (s *servers) oneCommand(
	name, short string, operations []string, run func(cmd *cobra.Command, id string) error,
) *cobra.Command {
	return &cobra.Command{
		Use: name + " SERVER", Short: short, Args: cobra.ExactArgs(1),
		ValidArgsFunction: s.Complete(1, s.finder(filter{})),
		Annotations:       cli.Calls(append(operations, "listServers")...),
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := s.resolveOne(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return run(cmd, t.id)
		},
	}
}

func (s *servers) listCommand() *cobra.Command {
	var f filter
	cmd := &cobra.Command{
		Use: "list", Short: "List the project's servers, the newest first", Args: cobra.NoArgs, Aliases: []string{"ls"},
		Example: "  cloudfn servers list --status ACTIVE -o wide\n" +
			"  cloudfn servers list --tracked=false --columns name,id",
		Annotations: cli.Calls("listServers"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("tracked") {
				isTracked, _ := cmd.Flags().GetBool("tracked")
				f.isTracked = &isTracked
			}
			if err := f.normalize(); err != nil {
				return err
			}
			found, err := s.find(cmd.Context(), f)
			if err != nil {
				return err
			}
			return output.List(&s.Print, found, serverTable(found, s.Now()))
		},
	}
	cmd.Flags().StringSliceVar(&f.statuses, "status", nil, "only these statuses, such as ACTIVE or SHUTOFF")
	cmd.Flags().StringVar(&f.name, "name", "", "only servers whose name contains this")
	cmd.Flags().Bool("tracked", false, "only those that are tracked as instances (=false: only the others)")
	cli.Choices(cmd, "status", domain.ServerStatuses()...)
	return cmd
}

// normalize puts the statuses in upper case, as Nova has them.
func (f *filter) normalize() error {
	known := domain.ServerStatuses()
	for i, status := range f.statuses {
		if f.statuses[i] = strings.ToUpper(status); !slices.Contains(known, f.statuses[i]) {
			return exit.Usagef("--status is %q: it must be one of %s", status, strings.Join(known, ", "))
		}
	}
	return nil
}

func serverTable(all []api.Item[api.Server], now time.Time) output.Table[api.Server] {
	return output.Table[api.Server]{
		Name: names(all),
		Columns: []string{
			"NAME", "STATUS*", "ADDRESSES", "FLAVOR:flavor.name", "ZONE+", "IMAGE+:image.id", "INSTANCE+:instance.id",
			"STATE*+:instance.state", "CREATED+:created_at", "AGE", "ID",
		},
		Texts: map[string]func(api.Server) string{
			"ADDRESSES": func(s api.Server) string {
				return addresses(s, func(a api.Address) string { return a.IP })
			},
			"AGE": func(s api.Server) string { return age(s.CreatedAt, now) },
		},
	}
}

// addresses lists a server's addresses, IPv4 first.
func addresses(s api.Server, text func(api.Address) string) string {
	var texts []string
	for _, a := range slices.SortedStableFunc(slices.Values(s.Addresses), func(a, b api.Address) int {
		return cmp.Compare(a.Version, b.Version)
	}) {
		texts = append(texts, text(a))
	}
	return strings.Join(texts, ", ")
}

// age is how much time has passed, in seconds up to 2 minutes, minutes up to 2 hours, hours up to 2 days, else
// days; "" when the time is unknown.
func age(since, now time.Time) string {
	d := max(now.Sub(since), 0)
	switch {
	case since.IsZero():
		return ""
	case d < 2*time.Minute:
		return strconv.Itoa(int(d.Seconds())) + "s"
	case d < 2*time.Hour:
		return strconv.Itoa(int(d.Minutes())) + "m"
	case d < 48*time.Hour:
		return strconv.Itoa(int(d.Hours())) + "h"
	}
	return strconv.Itoa(int(d.Hours()/24)) + "d"
}

func (s *servers) showCommand() *cobra.Command {
	return s.oneCommand("show", "Show one server", []string{"getServer"}, func(cmd *cobra.Command, id string) error {
		found, err := api.Get[api.Server](cmd.Context(), s.API(), "/v1/servers/"+id, cli.ConnectionQuery(s.connection))
		if err != nil {
			return err
		}
		lease := ""
		if id := cli.Value(cli.Value(found.Value.Instance).LeaseID); id != "" && !s.Print.IsData() {
			lease = s.lease(cmd.Context(), id)
		}
		return output.One(&s.Print, found, detailTable(found, lease))
	})
}

// lease says which lease a server is in. Users of a connection cannot read that of its project: it stays an id.
func (s *servers) lease(ctx context.Context, id string) string {
	found, err := api.Get[api.Lease](ctx, s.API(), "/v1/leases/"+id, nil)
	if err != nil {
		return id
	}
	l := found.Value
	return fmt.Sprintf("%s, %s, until %s, then %s (%s)", l.Name, l.Status, output.Time(l.End), l.OnEnd, id)
}

func detailTable(found api.Item[api.Server], lease string) output.Table[api.Server] {
	return output.Table[api.Server]{
		Name: names([]api.Item[api.Server]{found}),
		Columns: []string{
			"NAME", "ID", "STATUS*", "STATE*:instance.state", "FAULT", "ADDRESSES", "FLAVOR", "IMAGE", "ZONE",
			"KEY:key_name", "SECURITY_GROUPS", "SERVER_GROUPS", "VOLUMES", "METADATA", "TAGS", "LEASE",
			"CREATED:created_at", "UPDATED", "INSTANCE:instance.id", "ORIGIN:instance.origin",
			"CONNECTION:instance.connection_id", "AGENT", "PARTIAL",
		},
		Texts: map[string]func(api.Server) string{
			"IMAGE": image, "SERVER_GROUPS": serverGroups, "VOLUMES": volumes,
			"LEASE":    func(api.Server) string { return lease },
			"METADATA": func(s api.Server) string { return output.Pairs(cli.Value(s.Metadata)) },
			"FAULT":    fault, "FLAVOR": flavor, "UPDATED": updated, "AGENT": agent, "PARTIAL": partial,
			"ADDRESSES": func(s api.Server) string {
				return addresses(s, func(a api.Address) string {
					return fmt.Sprintf("%s %s (%s)", a.IP, a.Network, a.Type)
				})
			},
		},
	}
}

func fault(s api.Server) string {
	if s.Fault == nil {
		return ""
	}
	return s.Fault.Message + " (" + output.Time(s.Fault.CreatedAt) + ")"
}

func flavor(s api.Server) string {
	f := s.Flavor
	if f.Name == "" {
		return ""
	}
	return fmt.Sprintf("%s (%d vcpus, %d MB, %d GB)", f.Name, f.Vcpus, f.RAMMb, f.DiskGb)
}

// named is a name and its id, or the id alone.
func named(name *string, id string) string {
	if cli.Value(name) == "" {
		return id
	}
	return *name + " (" + id + ")"
}

func image(s api.Server) string {
	if s.Image == nil {
		return ""
	}
	return named(s.Image.Name, s.Image.ID)
}

func serverGroups(s api.Server) string {
	var all []string
	for _, group := range cli.Value(s.ServerGroups) {
		all = append(all, named(&group.Name, group.ID))
	}
	return strings.Join(all, ", ")
}

func volumes(s api.Server) string {
	var all []string
	for _, volume := range cli.Value(s.Volumes) {
		all = append(all, named(&volume.Name, volume.ID))
	}
	return strings.Join(all, ", ")
}

func updated(s api.Server) string {
	if s.UpdatedAt.Year() < 2 { // unknown
		return ""
	}
	return output.Time(s.UpdatedAt)
}

func partial(s api.Server) string {
	if s.Partial == nil {
		return ""
	}
	return "its cell is down: only its id, status and times are known"
}

func agent(s api.Server) string {
	agent := cli.Value(s.Instance).Agent
	switch {
	case agent == nil:
		return ""
	case agent.ReadyAt == nil:
		return fmt.Sprintf("%s, deployed %s, not ready yet", agent.Image, output.Time(agent.DeployedAt))
	}
	return fmt.Sprintf("%s, ready since %s", agent.Image, output.Time(*agent.ReadyAt))
}

func (s *servers) historyCommand() *cobra.Command {
	cmd := s.oneCommand("history", "Show the events of a tracked server and who caused them, the newest first",
		[]string{"getServerHistory"}, func(cmd *cobra.Command, id string) error {
			found, err := api.List[api.ServerEvent]{
				Path: "/v1/servers/history/" + id, Key: "events",
				Query: cli.ConnectionQuery(s.connection), Limit: cli.Limit(cmd),
			}.Read(cmd.Context(), s.API())
			if err != nil {
				return err
			}
			return output.List(&s.Print, found, historyTable)
		})
	cli.LimitFlag(cmd, 50)
	return cmd
}

var historyTable = output.Table[api.ServerEvent]{
	Columns: []string{
		"AT", "STATE*:data.state", "BEFORE:data.previous_state", "USER", "PROJECT:data.actor.project_id",
		"ACTION:data.actor.action", "CONNECTION+:data.actor.connection_id", "ORDER+:data.actor.order_id", "TYPE+",
		"ID+",
	},
	Texts: map[string]func(api.ServerEvent) string{"USER": user},
}

// user is who caused an event, by name if it is known.
func user(e api.ServerEvent) string {
	actor, _ := e.Data["actor"].(map[string]any)
	name, _ := actor["user_name"].(string)
	id, _ := actor["user_id"].(string)
	return cmp.Or(name, id)
}
