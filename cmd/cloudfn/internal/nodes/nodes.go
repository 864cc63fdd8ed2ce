// Package nodes holds the commands for hosts of compute.
package nodes

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
	"github.com/cloudfn/cloudfn/shared/domain"
)

var noun = cli.Noun[api.Node]{
	Path: "/v1/nodes", Key: "nodes", Arg: "NODE",
	Offer: func(n api.Node) string { return n.Name + "\t" + string(n.Status) },
	Below: func(a *cli.App, n api.Item[api.Node]) error { // the servers of its drain that have not moved
		servers := slices.Clone(domain.Deref(domain.Deref(n.Value.Drain).Servers))
		return output.Below(&a.Print, slices.DeleteFunc(servers, func(s api.DrainServer) bool {
			return string(s.State) == string(domain.DrainMoved)
		}), drainTable)
	},
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
	reasons := []string{domain.Deref(n.StatusReason), domain.Deref(n.DisabledReason)}
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

// drainTerms says who has begun a drain, and its terms.
func drainTerms(d *api.Drain) string {
	if d == nil {
		return ""
	}
	var terms []string
	switch by := d.RequestedBy; {
	case d.Automatic:
		terms = append(terms, "automatic")
	case by != nil:
		terms = append(terms, "by "+cmp.Or(domain.Deref(by.UserName), by.UserID))
	}
	if n := domain.Deref(d.Parallel); n > 0 {
		terms = append(terms, fmt.Sprintf("%d at a time", n))
	}
	if limit := domain.Deref(d.ServerTimeout); limit != "" {
		terms = append(terms, limit+" for each server")
	}
	return strings.Join(terms, ", ")
}

// Command holds the commands for hosts of compute.
func Command(a *cli.App) *cobra.Command {
	return cli.Group("nodes", "Show the cloud's hosts of compute, and take them out for maintenance (admins)",
		list(a), noun.Show(a, "Show a host, and what its drain has not moved", "getNode"), servers(a), cordon(a),
		uncordon(a), drain(a), cancelDrain(a), label(a), update(a), token(a), selfTest(a),
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
	cli.LimitFlag(cmd, 0)
	return cmd
}

var drainTable = output.Table[api.DrainServer]{
	Columns: []string{
		"SERVER:server_id", "NAME", "STATE*", "METHOD", "ROOM", "TARGET", "REASON", "PROJECT+:project_id",
	},
	Name: func(s api.DrainServer) string { return s.ServerID },
}

var serverTable = output.Table[api.NodeServer]{
	Columns: []string{"ID", "NAME", "STATUS*", "PROJECT:project_id"},
}

func servers(a *cli.App) *cobra.Command {
	cmd := noun.One(a, "servers", "List the servers on a host, of all projects", "listNodeServers",
		func(cmd *cobra.Command, name string) error {
			list := cli.Noun[api.NodeServer]{Path: noun.URL(name, "servers"), Key: "servers", Table: serverTable}
			return list.PrintList(cmd, a, nil)
		})
	cli.LimitFlag(cmd, 0)
	return cmd
}

func label(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use: "label NODE KEY=VALUE... KEY-...", Short: "Set the labels of a host, and remove them by KEY-",
		Example: "  cloudfn nodes label compute-1 rack=r1 disk-", Args: cobra.MinimumNArgs(2),
		Annotations: cli.Calls("changeNode"), ValidArgsFunction: a.Complete(1, noun.Finder(a, nil, 0)),
		RunE: func(cmd *cobra.Command, args []string) error {
			labels := map[string]any{}
			for _, arg := range args[1:] {
				key, value, isSet := strings.Cut(arg, "=")
				if without, ok := strings.CutSuffix(arg, "-"); ok && !isSet && without != "" {
					labels[without] = nil
					continue
				}
				if !isSet || key == "" {
					return exit.Usagef("%q is no label: it must be KEY=VALUE, or KEY- to remove it", arg)
				}
				labels[key] = value
			}
			body := map[string]any{"labels": labels}
			err := noun.Send(cmd.Context(), a, http.MethodPatch, noun.URL(args[0]), body)
			return noun.Near(cmd.Context(), a, args[0], err)
		},
	}
}

func update(a *cli.App) *cobra.Command {
	cmd := noun.One(a, "update", "Change what is set of a host", "changeNode",
		func(cmd *cobra.Command, name string) error {
			if cmd.Flags().NFlag() == 0 {
				return exit.Usagef("nothing is to be changed: %s nodes update -h lists flags", a.Name)
			}
			patch, err := patchOf(cmd.Flags())
			if err != nil {
				return err
			}
			return noun.Send(cmd.Context(), a, http.MethodPatch, noun.URL(name), patch)
		})
	cmd.Long = `Change what is set of a host. Without a flag a field stays as it is; an empty text removes it.

--auto-cordon-after cordons the host after it has been suspect or down for so long, and --auto-drain-after moves its
servers off
after it has been suspect or cordoned for so long. A host that is down is never drained.`
	cmd.Example = "  cloudfn nodes update compute-1 --region-zone hall-2 --auto-cordon-after 10m --alert=false"
	flags := cmd.Flags()
	flags.String("region-zone", "", "where it is")
	flags.String("network-zone", "", "where it is in the network")
	flags.StringSlice("provider", nil, "what runs on it besides Nova's hypervisor")
	flags.String("status-url", "", "what is requested while it is not up")
	flags.Bool("alert", true, "whether its changes are events")
	flags.String("auto-cordon-after", "", "suspect or down for so long: 10m, 2h, 1d, or none")
	flags.String("auto-drain-after", "", "suspect or cordoned for so long: 10m, 2h, 1d, or none")
	for _, flag := range []string{"auto-cordon-after", "auto-drain-after"} {
		cli.Choices(cmd, flag, "10m", "1h", "1d", "none")
	}
	return cmd
}

// patchOf is what the flags change. An empty text resets a field.
func patchOf(flags *pflag.FlagSet) (map[string]any, error) {
	patch := cli.Body(flags, "region-zone", "network-zone", "status-url", "auto-cordon-after", "auto-drain-after",
		"alert", "provider:providers")
	for key, value := range patch {
		text, isText := value.(string)
		if flag := strings.ReplaceAll(key, "_", "-"); strings.HasPrefix(key, "auto_") {
			period, err := periodOf(flag, text)
			if err != nil {
				return nil, err
			}
			text, patch[key] = period, period
		}
		if isText && text == "" {
			patch[key] = nil
		}
	}
	return patch, nil
}

// periodOf is a duration as ISO 8601 has it; none and an empty text give none.
func periodOf(flag, text string) (string, error) {
	if text == "" || text == "none" {
		return "", nil
	}
	period, err := cli.ParsePeriod(text)
	if err != nil {
		return "", exit.Usagef("--%s: %w", flag, err)
	}
	return period.String(), nil
}

func token(a *cli.App) *cobra.Command {
	cmd := noun.One(a, "token", "Make the token of a host's agent, or revoke it", "createNodeToken",
		func(cmd *cobra.Command, name string) error {
			if err := a.TextOnly(cmd, "table", "wide", "value"); err != nil {
				return err
			}
			path := noun.URL(name, "token")
			if isRevoked, _ := cmd.Flags().GetBool("revoke"); isRevoked {
				return a.API().Do(cmd.Context(), http.MethodDelete, path, nil, nil)
			}
			made, err := api.Send[api.NodeToken](cmd.Context(), a.API(), http.MethodPost, path, nil)
			if err == nil {
				_, err = fmt.Fprintln(a.Out, made.Value.Token)
			}
			return err
		})
	cmd.Annotations = cli.Calls("createNodeToken", "revokeNodeToken")
	cmd.Long = `Make the token with which an agent of your own reports how a host is, in the place of the one before.
It is printed this once. The agent sends it as Authorization: Bearer to POST /v1/nodes/NODE/heartbeat. What it
reports counts while it is fresh; nova-compute's own reports count all the same.`
	cmd.Example = "  cloudfn nodes token compute-1 > compute-1.token\n  cloudfn nodes token compute-1 --revoke"
	cmd.Flags().Bool("revoke", false, "revoke it, and make no other")
	return cmd
}

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
