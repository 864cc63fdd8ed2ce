// Package nodes holds the commands for hosts of compute.
package nodes

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
	"github.com/cloudfn/cloudfn/shared/domain"
)

var noun = cli.Noun[api.Node]{
	Path: "/v1/nodes", Key: "nodes", Arg: "NODE",
	Offer: func(n api.Node) string { return n.Name + "\t" + string(n.Status) },
	Table: output.Table[api.Node]{
		Columns: []string{
			"NAME", "STATUS*", "CORDONED_BY", "ZONE", "SERVERS", "VCPUS", "RAM_MB", "DISK_GB", "DRAIN", "RESERVABLE*",
			"LEASE+", "ISOLATION+", "HEARTBEAT+:heartbeat_at", "LABELS+",
		},
		Details: []string{
			"STATUS_REASON", "STATUS_SINCE", "SCHEDULABLE", "DISABLED_REASON", "REASON", "REGION", "REGION_ZONE",
			"NETWORK_ZONE", "PROVIDERS", "ISOLATION_DETAIL", "TESTED_AT", "STATUS_URL", "ALERT", "AUTO_CORDON_AFTER",
			"AUTO_DRAIN_AFTER", "DRAIN_TERMS",
		},
		Name: func(n api.Node) string { return n.Name },
		Texts: map[string]func(api.Node) string{
			"VCPUS":       func(n api.Node) string { return share(n.Used.Vcpus, n.Capacity.Vcpus) },
			"RAM_MB":      func(n api.Node) string { return share(n.Used.RAMMb, n.Capacity.RAMMb) },
			"DISK_GB":     func(n api.Node) string { return share(n.Used.DiskGb, n.Capacity.DiskGb) },
			"DRAIN":       func(n api.Node) string { return drainText(n.Drain) },
			"DRAIN_TERMS": func(n api.Node) string { return drainTerms(n.Drain) },
			"ALERT": func(n api.Node) string {
				return map[bool]string{true: "on: its changes are events", false: "off"}[n.Alert]
			},
			"LEASE":  func(n api.Node) string { return leaseText(n.Lease) },
			"LABELS": func(n api.Node) string { return output.Pairs(n.Labels) },
		},
	},
}

// listed is the noun as the list shows it. One node has the reasons among its details.
func listed() cli.Noun[api.Node] {
	n := noun
	n.Table.Columns = slices.Concat(noun.Table.Columns, []string{"WHY"})
	n.Table.Texts = maps.Clone(noun.Table.Texts)
	n.Table.Texts["WHY"] = why
	return n
}

// why says why a node is not up, and why it is disabled.
func why(n api.Node) string {
	reasons := []string{cli.Value(n.StatusReason), cli.Value(n.DisabledReason)}
	return strings.Join(slices.DeleteFunc(reasons, func(r string) bool { return r == "" }), "; ")
}

func share(used, capacity int) string { return fmt.Sprintf("%d/%d", used, capacity) }

// leaseText says which lease has a node, or gets it next.
func leaseText(l *api.NodeLease) string {
	if l == nil {
		return ""
	}
	return fmt.Sprintf("%s from %s to %s", l.ID, l.Start.UTC().Format(time.RFC3339), l.End.UTC().Format(time.RFC3339))
}

// drainText says how far a drain is.
func drainText(d *api.Drain) string {
	if d == nil {
		return ""
	}
	text := fmt.Sprintf("%s, %d of %d moved", d.State, d.Done, d.Done+d.Left+len(d.Skipped))
	if n := len(d.Skipped); n > 0 {
		text += fmt.Sprintf(", %d skipped", n)
	}
	return text
}

// drainTerms says who has begun a drain, and what it was asked to be.
func drainTerms(d *api.Drain) string {
	if d == nil {
		return ""
	}
	var terms []string
	switch by := d.RequestedBy; {
	case d.Automatic:
		terms = append(terms, "automatic")
	case by != nil:
		terms = append(terms, "by "+cmp.Or(cli.Value(by.UserName), by.UserID))
	}
	if n := cli.Value(d.Parallel); n > 0 {
		terms = append(terms, fmt.Sprintf("%d at a time", n))
	}
	if limit := cli.Value(d.ServerTimeout); limit != "" {
		terms = append(terms, limit+" for each server")
	}
	return strings.Join(terms, ", ")
}

// Command holds the commands for hosts of compute.
func Command(a *cli.App) *cobra.Command {
	return cli.Group("nodes", "Show the cloud's hosts of compute, and take them out for maintenance (admins)",
		list(a), show(a), servers(a), cordon(a), uncordon(a), drain(a), cancelDrain(a), label(a), update(a),
		token(a), selfTest(a),
		noun.Delete(a, "Delete hosts that are down and empty, from Nova too", "deleteNode"),
		noun.Act(a, "reservable", "Let an empty host be reserved", "makeNodeReservable"),
		noun.Act(a, "unreservable", "Open a reservable host to all servers again", "makeNodeUnreservable"))
}

var statuses = []string{
	string(domain.NodeUp), string(domain.NodeSuspect), string(domain.NodeDown), string(domain.NodeUnknown),
}

func list(a *cli.App) *cobra.Command {
	cmd := listed().List(a, "List the hosts, with what is used of what they have", "listNodes", "status", "schedulable",
		"zone", "label")
	cmd.Example = "  cloudfn nodes list --status suspect,down\n  cloudfn nodes list --label rack=r1 --schedulable=false"
	flags := cmd.Flags()
	cli.Statuses(cmd, statuses, "")
	flags.Bool("schedulable", true, "only those on which Nova places servers, or with =false the others")
	flags.String("zone", "", "only those of this availability zone")
	flags.StringSliceP("label", "l", nil, "only those with this label: KEY=VALUE; may be repeated")
	for _, flag := range []string{"zone", "label"} {
		cli.Choices(cmd, flag)
	}
	cli.LimitFlag(cmd, 0)
	return cmd
}

func show(a *cli.App) *cobra.Command {
	return noun.One(a, "show", "Show a host, and what its drain has not moved", "getNode",
		func(cmd *cobra.Command, name string) error {
			found, err := noun.Get(cmd.Context(), a, name, nil)
			if err != nil {
				return err
			}
			return printOne(a, found)
		})
}

var drainTable = output.Table[api.DrainServer]{
	Columns: []string{
		"SERVER:server_id", "NAME", "STATE*", "METHOD", "ROOM", "TARGET", "REASON", "PROJECT+:project_id",
	},
	Name: func(s api.DrainServer) string { return s.ServerID },
}

// printOne prints a node, and in a table the servers of its drain that have not moved.
func printOne(a *cli.App, n api.Item[api.Node]) error {
	if err := noun.Print(a, n); err != nil {
		return err
	}
	isTable := a.Print.Format == "table" || a.Print.Format == "wide"
	if !isTable || len(a.Print.Columns) > 0 || n.Value.Drain == nil {
		return nil
	}
	rows := slices.DeleteFunc(slices.Clone(cli.Value(n.Value.Drain.Servers)), func(s api.DrainServer) bool {
		return string(s.State) == string(domain.DrainMoved)
	})
	if len(rows) == 0 {
		return nil
	}
	fmt.Fprintln(a.Out)
	return output.Values(&a.Print, rows, drainTable)
}

var serverTable = output.Table[api.NodeServer]{
	Columns: []string{"ID", "NAME", "STATUS*", "PROJECT:project_id"},
}

func servers(a *cli.App) *cobra.Command {
	cmd := noun.One(a, "servers", "List the servers on a host, of all projects", "listNodeServers",
		func(cmd *cobra.Command, name string) error {
			list := api.List[api.NodeServer]{Path: noun.URL(name, "servers"), Key: "servers", Limit: cli.Limit(cmd)}
			found, err := list.Read(cmd.Context(), a.API())
			if err != nil {
				return err
			}
			return output.List(&a.Print, found, serverTable)
		})
	cli.LimitFlag(cmd, 0)
	return cmd
}
