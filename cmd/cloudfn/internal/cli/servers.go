package cli

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// servers is what the commands for servers share.
type servers struct {
	*app
	connection string // the id of the one that all goes through; "" = none
}

func (a *app) serversCommand() *cobra.Command {
	s := &servers{app: a}
	c := group("servers", "List, show and act on servers",
		s.listCommand(), s.showCommand(), s.historyCommand(), s.startCommand(), s.stopCommand(), s.rebootCommand(), s.deleteCommand(),
		s.deployCommand(), s.connectCommand(), s.disconnectCommand(), s.reusableCommand(), s.actionCommand())
	c.Aliases = []string{"server"}
	c.Long = `List, show and act on servers. SERVER is the id of a server, or of the instance that it is tracked as, or a name that only
one server has. -o name prints for each server what other commands take: its name, or its id where that is not enough.`
	c.PersistentFlags().StringVar(&s.connection, "connection", "", "id of the connection to do it through")
	_ = c.RegisterFlagCompletionFunc("connection", a.complete(a.usableConnections))
	return c
}

// optional is how a body carries what may be left out.
func optional[T comparable](v T) *T {
	var none T
	if v == none {
		return nil
	}
	return &v
}

// filter is which servers are wanted.
type filter struct {
	statuses     []string
	name         string
	tracked, has bool // has: tracked is given
}

func (s *servers) listCommand() *cobra.Command {
	var f filter
	cmd := &cobra.Command{
		Use: "list", Short: "List the project's servers, the newest first", Args: cobra.NoArgs, Aliases: []string{"ls"},
		Example:     "  cloudfn servers list --status ACTIVE -o wide\n  cloudfn servers list --tracked=false --columns name,id",
		Annotations: calls("listServers"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.has = cmd.Flags().Changed("tracked")
			if err := f.check(); err != nil {
				return err
			}
			client, err := s.api(cmd.Context())
			if err != nil {
				return err
			}
			found, err := s.find(cmd.Context(), client, f)
			if err != nil {
				return err
			}
			return output.List(&s.print, found, handle(found), serverColumns(s.now()))
		},
	}
	cmd.Flags().StringSliceVar(&f.statuses, "status", nil, "only these statuses, such as ACTIVE or SHUTOFF")
	cmd.Flags().StringVar(&f.name, "name", "", "only servers whose name contains this")
	cmd.Flags().BoolVar(&f.tracked, "tracked", false, "only those that are tracked as instances (=false: only the others)")
	_ = cmd.RegisterFlagCompletionFunc("status", cobra.FixedCompletions(domain.ServerStatuses(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// check puts the statuses in Nova's way of writing.
func (f *filter) check() error {
	known := domain.ServerStatuses()
	for i, status := range f.statuses {
		if f.statuses[i] = strings.ToUpper(status); !slices.Contains(known, f.statuses[i]) {
			return wrong("--status is %q: it must be one of %s", status, strings.Join(known, ", "))
		}
	}
	return nil
}

// find lists what is wanted. The API filters as far as it can, and here the rest is.
func (s *servers) find(ctx context.Context, client *api.Client, f filter) ([]api.Item[api.Server], error) {
	q := through(s.connection)
	if s.connection == "" {
		q = url.Values{}
		if f.name != "" {
			q.Set("name", f.name)
		}
		if len(f.statuses) == 1 {
			q.Set("status", f.statuses[0])
		}
		if f.has {
			q.Set("tracked", strconv.FormatBool(f.tracked))
		}
	}
	return api.Select(ctx, client, "/v1/servers", q, "servers", 0, func(found api.Server) bool {
		return (len(f.statuses) == 0 || slices.Contains(f.statuses, found.Status)) &&
			strings.Contains(strings.ToLower(found.Name), strings.ToLower(f.name)) &&
			(!f.has || f.tracked == (found.Instance != nil))
	})
}

// handle is what other commands take for a server: its name where that is good enough, else its id.
func handle(all []api.Item[api.Server]) func(api.Server) string {
	times := map[string]int{}
	for _, one := range all {
		times[one.Value.Name]++
	}
	return func(s api.Server) string {
		if s.Name == "" || times[s.Name] > 1 || isID(s.Name) || awkward(s.Name) || output.Clean(s.Name) != s.Name {
			return s.ID
		}
		return s.Name
	}
}

func serverColumns(now time.Time) []output.Column[api.Server] {
	return []output.Column[api.Server]{
		{Title: "NAME", Text: func(s api.Server) string { return s.Name }},
		{Title: "STATUS", State: true, Text: func(s api.Server) string { return s.Status }},
		{Title: "ADDRESSES", Text: func(s api.Server) string {
			var ips []string
			for _, a := range addresses(s) {
				ips = append(ips, a.IP)
			}
			return strings.Join(ips, ", ")
		}},
		{Title: "FLAVOR", Text: func(s api.Server) string { return s.Flavor.Name }},
		{Title: "ZONE", Wide: true, Text: func(s api.Server) string { return s.Zone }},
		{Title: "IMAGE", Wide: true, Text: serverImage},
		{Title: "INSTANCE", Wide: true, Text: func(s api.Server) string { return value(s.Instance).ID }},
		{Title: "STATE", Wide: true, State: true, Text: func(s api.Server) string { return string(value(s.Instance).State) }},
		{Title: "CREATED", Wide: true, Text: func(s api.Server) string { return stamp(s.CreatedAt) }},
		{Title: "AGE", Text: func(s api.Server) string { return age(s.CreatedAt, now) }},
		{Title: "ID", Text: func(s api.Server) string { return s.ID }},
	}
}

// addresses are a server's, the short ones first.
func addresses(s api.Server) []api.Address {
	return slices.SortedStableFunc(slices.Values(s.Addresses), func(a, b api.Address) int { return cmp.Compare(a.Version, b.Version) })
}

func serverImage(s api.Server) string { return value(s.Image).ID }

// age is how much time has passed, by its largest unit that is not small; since the zero time it is not known.
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
	return &cobra.Command{
		Use: "show SERVER", Short: "Show one server", Args: cobra.ExactArgs(1), ValidArgsFunction: s.completeServers(1),
		Annotations: calls("getServer", "listServers"),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := s.api(cmd.Context())
			if err != nil {
				return err
			}
			t, err := s.resolveOne(cmd.Context(), client, args[0])
			if err != nil {
				return err
			}
			found, err := api.One[api.Server](cmd.Context(), client, "/v1/servers/"+t.id, through(s.connection))
			if err != nil {
				return err
			}
			return output.One(&s.print, found, handle([]api.Item[api.Server]{found}), serverFacts)
		},
	}
}

var serverFacts = []output.Column[api.Server]{
	{Title: "NAME", Text: func(s api.Server) string { return s.Name }},
	{Title: "ID", Text: func(s api.Server) string { return s.ID }},
	{Title: "STATUS", State: true, Text: func(s api.Server) string { return s.Status }},
	{Title: "STATE", State: true, Text: func(s api.Server) string { return string(value(s.Instance).State) }},
	{Title: "FAULT", Text: func(s api.Server) string {
		if s.Fault == nil {
			return ""
		}
		return s.Fault.Message + " (" + stamp(s.Fault.CreatedAt) + ")"
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
	{Title: "IMAGE", Text: serverImage},
	{Title: "ZONE", Text: func(s api.Server) string { return s.Zone }},
	{Title: "KEY", Text: func(s api.Server) string { return value(s.KeyName) }},
	{Title: "CREATED", Text: func(s api.Server) string { return stamp(s.CreatedAt) }},
	{Title: "UPDATED", Text: func(s api.Server) string {
		if s.UpdatedAt.Year() < 2 { // not known
			return ""
		}
		return stamp(s.UpdatedAt)
	}},
	{Title: "INSTANCE", Text: func(s api.Server) string { return value(s.Instance).ID }},
	{Title: "ORIGIN", Text: func(s api.Server) string { return string(value(s.Instance).Origin) }},
	{Title: "CONNECTION", Text: func(s api.Server) string { return value(value(s.Instance).ConnectionID) }},
	{Title: "AGENT", Text: agentText},
	{Title: "PARTIAL", Text: func(s api.Server) string {
		if s.Partial == nil {
			return ""
		}
		return "its cell is down: only its id, status and times are known"
	}},
}

func agentText(s api.Server) string {
	agent := value(s.Instance).Agent
	switch {
	case agent == nil:
		return ""
	case agent.ReadyAt == nil:
		return fmt.Sprintf("%s, deployed %s, not ready yet", agent.Image, stamp(agent.DeployedAt))
	}
	return fmt.Sprintf("%s, ready since %s", agent.Image, stamp(*agent.ReadyAt))
}
