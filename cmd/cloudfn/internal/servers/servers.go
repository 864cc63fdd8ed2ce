// Package servers holds the commands that list servers and act on them.
package servers

import (
	"cmp"
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
		s.deleteCommand(), s.deployCommand(), s.connectCommand(), s.disconnectCommand(), s.reusableCommand(),
		s.actionCommand())
	c.Aliases = []string{"server"}
	c.Long = `List, show and act on servers. SERVER is the id of a server, or of the instance that it is tracked as,
or a name that only one server has. -o name prints for each server what other commands take: its name, or its id where
the name is not enough.`
	c.PersistentFlags().StringVar(&s.connection, "connection", "", "id of the connection to act through")
	a.CompleteFlag(c, "connection", a.UsableConnections)
	return c
}

// oneCommand is a command for one server. run gets the server's id.
func (s *servers) oneCommand(
	verb, short string, operations []string, run func(cmd *cobra.Command, id string) error,
) *cobra.Command {
	return &cobra.Command{
		Use: verb + " SERVER", Short: short, Args: cobra.ExactArgs(1),
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
	return output.Table[api.Server]{Name: names(all), Columns: []output.Column[api.Server]{
		{Title: "NAME"}, {Title: "STATUS", IsState: true}, {Title: "ADDRESSES", Text: func(s api.Server) string {
			var ips []string
			for _, a := range addresses(s) {
				ips = append(ips, a.IP)
			}
			return strings.Join(ips, ", ")
		}},
		{Title: "FLAVOR", Path: "flavor.name"}, {Title: "ZONE", IsWide: true},
		{Title: "IMAGE", Path: "image.id", IsWide: true}, {Title: "INSTANCE", Path: "instance.id", IsWide: true},
		{Title: "STATE", Path: "instance.state", IsWide: true, IsState: true},
		{Title: "CREATED", Path: "created_at", IsWide: true},
		{Title: "AGE", Text: func(s api.Server) string { return age(s.CreatedAt, now) }}, {Title: "ID"},
	}}
}

// addresses are a server's, IPv4 first.
func addresses(s api.Server) []api.Address {
	return slices.SortedStableFunc(slices.Values(s.Addresses), func(a, b api.Address) int {
		return cmp.Compare(a.Version, b.Version)
	})
}

// age is how much time has passed, in its largest unit that keeps two digits; "" when the time is unknown.
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
		table := output.Table[api.Server]{Columns: serverFacts, Name: names([]api.Item[api.Server]{found})}
		return output.One(&s.Print, found, table)
	})
}

var serverFacts = []output.Column[api.Server]{
	{Title: "NAME"}, {Title: "ID"}, {Title: "STATUS", IsState: true},
	{Title: "STATE", Path: "instance.state", IsState: true},
	{Title: "FAULT", Text: func(s api.Server) string {
		if s.Fault == nil {
			return ""
		}
		return s.Fault.Message + " (" + output.Time(s.Fault.CreatedAt) + ")"
	}},
	{Title: "ADDRESSES", Text: func(s api.Server) string {
		var texts []string
		for _, a := range addresses(s) {
			texts = append(texts, fmt.Sprintf("%s %s (%s)", a.IP, a.Network, a.Type))
		}
		return strings.Join(texts, ", ")
	}},
	{Title: "FLAVOR", Text: func(s api.Server) string {
		f := s.Flavor
		if f.Name == "" {
			return ""
		}
		return fmt.Sprintf("%s (%d vcpus, %d MB, %d GB)", f.Name, f.Vcpus, f.RAMMb, f.DiskGb)
	}},
	{Title: "IMAGE", Path: "image.id"}, {Title: "ZONE"}, {Title: "KEY", Path: "key_name"},
	{Title: "CREATED", Path: "created_at"},
	{Title: "UPDATED", Text: func(s api.Server) string {
		if s.UpdatedAt.Year() < 2 { // unknown
			return ""
		}
		return output.Time(s.UpdatedAt)
	}},
	{Title: "INSTANCE", Path: "instance.id"}, {Title: "ORIGIN", Path: "instance.origin"},
	{Title: "CONNECTION", Path: "instance.connection_id"}, {Title: "AGENT", Text: agent},
	{Title: "PARTIAL", Text: func(s api.Server) string {
		if s.Partial == nil {
			return ""
		}
		return "its cell is down: only its id, status and times are known"
	}},
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

var historyTable = output.Table[api.ServerEvent]{Columns: []output.Column[api.ServerEvent]{
	{Title: "AT"}, {Title: "STATE", Path: "data.state", IsState: true}, {Title: "BEFORE", Path: "data.previous_state"},
	{Title: "USER", Text: user}, {Title: "PROJECT", Path: "data.actor.project_id"},
	{Title: "ACTION", Path: "data.actor.action"}, {Title: "CONNECTION", Path: "data.actor.connection_id", IsWide: true},
	{Title: "ORDER", Path: "data.actor.order_id", IsWide: true}, {Title: "TYPE", IsWide: true},
	{Title: "ID", IsWide: true},
}}

// user is who caused an event, by name if it is known.
func user(e api.ServerEvent) string {
	actor, _ := e.Data["actor"].(map[string]any)
	name, _ := actor["user_name"].(string)
	id, _ := actor["user_id"].(string)
	return cmp.Or(name, id)
}
