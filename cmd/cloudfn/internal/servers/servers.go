// Package servers holds the commands that list servers and act on them.
package servers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/resources"
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
		s.deployCommand(), s.connectCommand(), s.disconnectCommand(), s.reusableCommand(), s.actionCommand(),
		s.volumesCommand(), s.attachCommand(), s.detachCommand(), s.setCommand(), s.unsetCommand())
	c.AddCommand(s.stateCommands()...)
	c.AddCommand(s.networkCommands()...)
	c.AddCommand(s.floatingIPCommands()...)
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
			id, err := cli.One(s.resolve(cmd.Context(), args[0]))
			if err != nil {
				return err
			}
			return run(cmd, id)
		},
	}
}

// listFlags are the flags of the list that the API filters and sorts by.
var listFlags = []string{"ip", "flavor", "image", "key-name", "host", "changes-since", "sort"}

func (s *servers) listCommand() *cobra.Command {
	f := filter{}
	cmd := &cobra.Command{
		Use: "list", Short: "List the project's servers, the newest first", Args: cobra.NoArgs, Aliases: []string{"ls"},
		Example: "  cloudfn servers list --status ACTIVE -o wide\n" +
			"  cloudfn servers list --tracked=false --columns name,id\n" +
			"  cloudfn servers list --flavor m1.tiny --sort name",
		Annotations: cli.Calls("listServers"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("tracked") {
				isTracked, _ := cmd.Flags().GetBool("tracked")
				f.isTracked = &isTracked
			}
			f.more = cli.Query(cmd.Flags(), listFlags...)
			if err := f.normalize(); err != nil {
				return err
			}
			return cli.PrintList(cmd, s.App, func() ([]api.Item[api.Server], output.Table[api.Server], error) {
				found, err := s.find(cmd.Context(), f)
				return found, serverTable(found, s.Now()), err
			})
		},
	}
	cli.WatchFlag(cmd)
	cmd.Flags().StringSliceVar(&f.statuses, "status", nil, "only these statuses, such as ACTIVE or SHUTOFF")
	cmd.Flags().StringVar(&f.name, "name", "", "only servers whose name contains this")
	cmd.Flags().Bool("tracked", false, "only those that are tracked as instances (=false: only the others)")
	cli.Choices(cmd, "status", domain.ServerStatuses()...)
	flags := cmd.Flags()
	flags.String("ip", "", "only servers with an address that contains this")
	flags.String("flavor", "", "only servers of this flavor, by name or id")
	flags.String("image", "", "only servers of this image, by name or id")
	flags.String("key-name", "", "only servers with this key pair")
	flags.String("host", "", "only servers on this host (for admins)")
	s.Since(cmd, "changes-since", "only what changed since a time such as 2027-01-01T18:00:00Z, or how long "+
		"ago, such as 1h; deleted servers, too")
	flags.String("sort", "", "the order: "+strings.Join(domain.ServerSorts(), ", "))
	cli.Choices(cmd, "sort", domain.ServerSorts()...)
	for flag, kind := range map[string]string{"flavor": "flavors", "image": "images", "key-name": "keypairs"} {
		s.CompleteFlag(cmd, flag, resources.Finder(s.App, kind))
	}
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
		if id := domain.Deref(domain.Deref(found.Value.Instance).LeaseID); id != "" && !s.Print.IsData() {
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
			"NAME", "ID", "DESCRIPTION", "STATUS*", "STATE*:instance.state", "LOCKED", "FAULT", "ADDRESSES", "FLAVOR",
			"IMAGE", "ZONE", "KEY:key_name", "SECURITY_GROUPS", "SERVER_GROUPS", "VOLUMES", "METADATA", "TAGS", "LEASE",
			"CREATED:created_at", "UPDATED", "INSTANCE:instance.id", "ORIGIN:instance.origin",
			"CONNECTION:instance.connection_id", "AGENT", "PARTIAL",
		},
		Texts: map[string]func(api.Server) string{
			"IMAGE": image, "SERVER_GROUPS": serverGroups, "VOLUMES": volumeNames,
			"LEASE":    func(api.Server) string { return lease },
			"METADATA": func(s api.Server) string { return output.Pairs(domain.Deref(s.Metadata)) },
			"LOCKED":   locked, "FAULT": fault, "FLAVOR": flavor, "UPDATED": updated, "AGENT": agent,
			"PARTIAL": partial,
			"ADDRESSES": func(s api.Server) string {
				return addresses(s, func(a api.Address) string {
					return fmt.Sprintf("%s %s (%s)", a.IP, a.Network, a.Type)
				})
			},
		},
	}
}

func locked(s api.Server) string {
	if s.Locked == nil {
		return ""
	}
	return "Nova rejects other actions than unlock"
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
	if domain.Deref(name) == "" {
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
	for _, group := range domain.Deref(s.ServerGroups) {
		all = append(all, named(&group.Name, group.ID))
	}
	return strings.Join(all, ", ")
}

func volumeNames(s api.Server) string {
	var all []string
	for _, volume := range domain.Deref(s.Volumes) {
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
	agent := domain.Deref(s.Instance).Agent
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
			events := cli.Noun[api.ServerEvent]{Path: "/v1/servers/history/" + id, Key: "events", Table: historyTable}
			return events.PrintList(cmd, s.App, cli.ConnectionQuery(s.connection))
		})
	cli.LimitFlag(cmd, 50)
	return cmd
}

var historyTable = output.Table[api.ServerEvent]{
	Columns: []string{
		"AT", "STATE*:data.state", "BEFORE:data.previous_state", "STATUS:data.status", "USER",
		"PROJECT:data.actor.project_id", "ACTION:data.actor.action", "CONNECTION+:data.actor.connection_id",
		"ORDER+:data.actor.order_id", "TYPE+", "ID+",
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

// filter says which servers are wanted.
type filter struct {
	statuses  []string
	name      string // a part of it
	isTracked *bool  // nil = whether or not
	more      url.Values
}

// find lists servers. The API filters as far as it can, and find does the rest.
func (s *servers) find(ctx context.Context, f filter) ([]api.Item[api.Server], error) {
	query := cli.ConnectionQuery(s.connection)
	if s.connection == "" {
		query = url.Values{}
		if f.name != "" {
			query.Set("name", f.name)
		}
		if len(f.statuses) == 1 {
			query.Set("status", f.statuses[0])
		}
		if f.isTracked != nil {
			query.Set("tracked", strconv.FormatBool(*f.isTracked))
		}
	}
	maps.Copy(query, f.more)
	return api.List[api.Server]{Path: "/v1/servers", Key: "servers", Query: query, Keep: func(found api.Server) bool {
		return (len(f.statuses) == 0 || slices.Contains(f.statuses, found.Status)) &&
			strings.Contains(strings.ToLower(found.Name), strings.ToLower(f.name)) &&
			(f.isTracked == nil || *f.isTracked == (found.Instance != nil))
	}}.Read(ctx, s.API())
}

// names gives what other commands take for a server: its name where that is enough, else its id.
func names(all []api.Item[api.Server]) func(api.Server) string {
	count := map[string]int{}
	for _, item := range all {
		count[item.Value.Name]++
	}
	return func(s api.Server) string {
		if s.Name == "" || count[s.Name] > 1 || cli.IsID(s.Name) || needsQuotes(s.Name) {
			return s.ID
		}
		return s.Name
	}
}

// needsQuotes reports whether a terminal, a shell or xargs would split or change a name, or a command take it for a
// flag.
func needsQuotes(name string) bool {
	return strings.HasPrefix(name, "-") || strings.ContainsAny(name, `"'\`) ||
		strings.ContainsFunc(name, unicode.IsSpace) || output.Clean(name) != name
}

// resolve finds servers by their ids or names. For one name it first reads only the servers whose names contain it.
func (s *servers) resolve(ctx context.Context, args ...string) ([]cli.Target, error) {
	ref := func(i api.Item[api.Server]) (id, name string, isOver bool) { return i.Value.ID, i.Value.Name, false }
	return cli.Resolve(args, "server", ref, func(names []string) (found []api.Item[api.Server], err error) {
		if slices.Contains(names, "") {
			return nil, exit.Usagef("a server's name is empty")
		}
		hasName := func(i api.Item[api.Server]) bool { return i.Value.Name == names[0] }
		if len(names) == 1 {
			found, err = s.find(ctx, filter{name: names[0]})
		}
		if err != nil || slices.ContainsFunc(found, hasName) {
			return found, err
		}
		return s.find(ctx, filter{}) // also for the name that is nearest to one
	})
}

// finder completes servers that match a filter.
func (s *servers) finder(f filter) cli.Finder {
	return func(ctx context.Context, args []string, begun string) ([]string, error) {
		what := fmt.Sprint("servers ", s.connection, f.isTracked != nil)
		texts, err := s.Cached(what, func(ctx context.Context) (texts []string, err error) {
			found, err := s.find(ctx, f)
			for _, item := range found {
				texts = append(texts, item.Value.ID+"\t"+item.Value.Status+"\t"+item.Value.Name)
			}
			return texts, err
		})(ctx, args, begun)
		found := make([]api.Item[api.Server], len(texts))
		for n, text := range texts {
			one := &found[n].Value
			one.ID, text, _ = strings.Cut(text, "\t")
			one.Status, one.Name, _ = strings.Cut(text, "\t")
		}
		return completions(found, args, begun), err
	}
}

// completions offers names; and ids once something is typed, or where the name is not enough.
func completions(found []api.Item[api.Server], given []string, begun string) []string {
	var texts []string
	nameOf := names(found)
	for _, item := range found {
		name, server := nameOf(item.Value), item.Value
		if slices.Contains(given, name) || slices.Contains(given, server.ID) {
			continue
		}
		if name != server.ID {
			texts = append(texts, name+"\t"+strings.ToLower(server.Status))
		}
		if name == server.ID || begun != "" {
			texts = append(texts, server.ID+"\t"+server.Name+" "+strings.ToLower(server.Status))
		}
	}
	return texts
}

// Find reads the server that is given by its id, its instance's, or a name that only one server has.
func Find(ctx context.Context, a *cli.App, arg string) (api.Server, error) {
	s := servers{App: a}
	id, err := cli.One(s.resolve(ctx, arg))
	if err != nil {
		return api.Server{}, err
	}
	found, err := api.Get[api.Server](ctx, a.API(), "/v1/servers/"+id, nil)
	return found.Value, err
}

// InstanceFlag replaces the server of a flag, which is given as for Find, by its instance's id. The API explains an id
// that no server has.
func InstanceFlag(cmd *cobra.Command, a *cli.App, name string) error {
	flag := cmd.Flags().Lookup(name)
	arg := flag.Value.String()
	if !flag.Changed || arg == "" {
		return nil
	}
	if err := errors.Join(cmd.ValidateRequiredFlags(), cmd.ValidateFlagGroups()); err != nil { // cobra does it later
		return err
	}
	a.Begin()
	found, err := Find(cmd.Context(), a, arg)
	switch {
	case cli.IsID(arg) && api.HasStatus(err, http.StatusNotFound):
		return nil
	case err != nil:
		return err
	case found.Instance == nil:
		return exit.Errorf(exit.NotFound, "server %s is not tracked: %s servers connect %s", arg, a.Name, found.ID)
	}
	return flag.Value.Set(found.Instance.ID)
}
