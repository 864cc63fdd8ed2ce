// Package securitygroups holds the commands for security groups and their rules.
package securitygroups

import (
	"cmp"
	"net/http"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/resources"
	"github.com/cloudfn/cloudfn/shared/domain"
)

type group = api.SecurityGroupWithRules

// Noun is what the commands for security groups share.
var Noun = cli.Noun[group]{
	Path: "/v1/security-groups", Key: "security_groups", Arg: "SECURITY-GROUP",
	Offer: func(g group) string { return g.ID + "\t" + g.Name },
	Ref:   func(g group) (id, name string, isOver bool) { return g.ID, g.Name, false },
	Table: output.Table[group]{
		Name:    func(g group) string { return g.ID },
		Columns: []string{"NAME", "DESCRIPTION", "RULES", "CREATED+:created_at", "ID"},
		Details: []string{"UPDATED:updated_at"},
		Texts: map[string]func(group) string{
			"RULES": func(g group) string { return strconv.Itoa(len(g.Rules)) },
		},
	},
}

var rules = output.Table[api.SecurityGroupRule]{
	Name: func(r api.SecurityGroupRule) string { return r.ID },
	Columns: []string{
		"DIRECTION", "ETHERTYPE", "PROTOCOL", "PORTS", "REMOTE", "DESCRIPTION+", "ID",
	},
	Texts: map[string]func(api.SecurityGroupRule) string{
		"PROTOCOL": func(r api.SecurityGroupRule) string { return cmp.Or(r.Protocol, "any") },
		"PORTS":    ports,
		"REMOTE": func(r api.SecurityGroupRule) string {
			return cmp.Or(r.RemoteCidr, r.RemoteGroup, "any")
		},
	},
}

// ports are the ports of a rule: 80, or 80-90.
func ports(r api.SecurityGroupRule) string {
	switch {
	case r.PortMin == nil:
		return "any"
	case r.PortMax == nil, *r.PortMin == *r.PortMax:
		return strconv.Itoa(*r.PortMin)
	}
	return strconv.Itoa(*r.PortMin) + "-" + strconv.Itoa(domain.Deref(r.PortMax))
}

// Command holds the commands for security groups.
func Command(a *cli.App) *cobra.Command {
	list := Noun.List(a, "List the project's security groups", "listSecurityGroups", "name")
	cli.LimitFlag(list, 0)
	list.Flags().String("name", "", "only security groups whose name contains this")
	c := cli.Group("security-groups", "List, show, create and delete security groups, and change their rules",
		list,
		Noun.Show(a, "Show a security group", "getSecurityGroup"),
		create(a),
		Noun.Delete(a, "Delete security groups and their rules", "deleteSecurityGroup"),
		listRules(a), addRule(a), removeRule(a))
	c.Long = `List, show, create and delete security groups, and change their rules. SECURITY-GROUP is an id, or a name
that only one security group has.`
	return c
}

func create(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Create a security group, which lets everything out and nothing in",
		Args: cobra.ExactArgs(1), Annotations: cli.Calls("createSecurityGroup"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			body := cli.Body(cmd.Flags(), "description")
			body["name"] = args[0]
			return Noun.SendOnce(cmd.Context(), a, Noun.Path, body)
		},
	}
	cmd.Flags().String("description", "", "what it is for")
	return cmd
}

func listRules(a *cli.App) *cobra.Command {
	return Noun.One(a, "rules", "List the rules of a security group", "getSecurityGroup",
		func(cmd *cobra.Command, id string) error {
			all := cli.Noun[api.SecurityGroupRule]{Path: Noun.URL(id), Key: "rules", Table: rules, HasNoPages: true}
			return all.PrintList(cmd, a, nil)
		})
}

func addRule(a *cli.App) *cobra.Command {
	cmd := Noun.One(a, "add-rule", "Add a rule to a security group, if it has no such rule", "addSecurityGroupRule",
		func(cmd *cobra.Command, id string) error {
			body := cli.Body(cmd.Flags(), "direction", "ethertype", "protocol", "port-min", "port-max", "remote-cidr",
				"remote-group", "description")
			made := cli.Noun[api.SecurityGroupRule]{Table: rules}
			return made.Send(cmd.Context(), a, http.MethodPost, Noun.URL(id, "rules"), body)
		})
	cmd.Example = "  cloudfn security-groups add-rule web --protocol tcp --port-min 443 --remote-cidr 0.0.0.0/0\n" +
		"  cloudfn security-groups add-rule backends --protocol tcp --port-min 8000 --port-max 8099 --remote-group web"
	flags := cmd.Flags()
	flags.String("direction", "", "ingress or egress (default: ingress)")
	flags.String("ethertype", "", "IPv4 or IPv6 (default: that of --remote-cidr, or IPv4)")
	flags.String("protocol", "", "such as tcp, udp or icmp, or a number (default: any)")
	flags.Int("port-min", 0, "the port, or the first of a range; of ICMP the type")
	flags.Int("port-max", 0, "the last port of a range; of ICMP the code")
	flags.String("remote-cidr", "", "only from or to these addresses, such as 10.0.0.0/8")
	flags.String("remote-group", "", "only from or to the ports of this security group, by name or id")
	flags.String("description", "", "what it is for")
	cli.Choices(cmd, "direction", "ingress", "egress")
	cli.Choices(cmd, "ethertype", "IPv4", "IPv6")
	a.CompleteFlag(cmd, "remote-group", resources.Finder(a, "security_groups"))
	return cmd
}

func removeRule(a *cli.App) *cobra.Command {
	cmd := Noun.One(a, "remove-rule", "Remove a rule of a security group", "removeSecurityGroupRule", nil)
	cmd.Use, cmd.Args = "remove-rule SECURITY-GROUP RULE", cobra.ExactArgs(2)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		id, err := Noun.Resolve(cmd.Context(), a, args[0], nil)
		if err != nil {
			return err
		}
		return a.API().Do(cmd.Context(), http.MethodDelete, Noun.URL(id, "rules", args[1]), nil, nil)
	}
	return cmd
}
