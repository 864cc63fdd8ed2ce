package servers

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/resources"
)

var groupTable = output.Table[api.ServerSecurityGroup]{
	Name:    func(g api.ServerSecurityGroup) string { return g.ID },
	Columns: []string{"NAME", "PORTS", "ID"},
	Texts: map[string]func(api.ServerSecurityGroup) string{
		"PORTS": func(g api.ServerSecurityGroup) string { return strings.Join(g.PortIds, ", ") },
	},
}

var interfaceTable = output.Table[api.ServerInterface]{
	Name:    func(i api.ServerInterface) string { return i.PortID },
	Columns: []string{"NETWORK", "ADDRESSES", "STATUS*", "SECURITY_GROUPS", "MAC+:mac_address", "PORT:port_id"},
	Texts: map[string]func(api.ServerInterface) string{
		"NETWORK": func(i api.ServerInterface) string { return named(&i.Network.Name, i.Network.ID) },
		"ADDRESSES": func(i api.ServerInterface) string {
			var all []string
			for _, a := range i.FixedIps {
				all = append(all, a.IP)
			}
			return strings.Join(all, ", ")
		},
		"SECURITY_GROUPS": func(i api.ServerInterface) string {
			var all []string
			for _, g := range i.SecurityGroups {
				all = append(all, nameOr(g))
			}
			return strings.Join(all, ", ")
		},
	},
}

// nameOr is a name, or the id of what has none.
func nameOr(n api.NamedID) string {
	if n.Name == "" {
		return n.ID
	}
	return n.Name
}

func (s *servers) networkCommands() []*cobra.Command {
	return []*cobra.Command{
		s.groupsCommand(), s.addGroupCommand(), s.removeGroupCommand(),
		s.interfacesCommand(), s.addInterfaceCommand(), s.removeInterfaceCommand(),
	}
}

func (s *servers) groups(id string) cli.Noun[api.ServerSecurityGroup] {
	return cli.Noun[api.ServerSecurityGroup]{
		Path: "/v1/servers/" + id + "/security-groups", Key: "security_groups", Arg: "SECURITY-GROUP",
		Table:      groupTable,
		Ref:        func(g api.ServerSecurityGroup) (id, name string, isOver bool) { return g.ID, g.Name, false },
		HasNoPages: true,
	}
}

func (s *servers) groupsCommand() *cobra.Command {
	return s.ownCommand("security-groups", "List a server's security groups", []string{"listServerSecurityGroups"},
		func(cmd *cobra.Command, id string, _ []string) error {
			return s.groups(id).PrintList(cmd, s.App, nil)
		})
}

func (s *servers) addGroupCommand() *cobra.Command {
	cmd := s.ownCommand("add-security-group", "Give a server a security group", []string{"addSecurityGroup"},
		func(cmd *cobra.Command, id string, args []string) error {
			body := cli.Body(cmd.Flags(), "port:port_id")
			body["security_group"] = args[0]
			all := s.groups(id)
			return all.Send(cmd.Context(), s.App, http.MethodPost, all.Path, body)
		}, "SECURITY-GROUP")
	cmd.Flags().String("port", "", "the id of one of its ports (default: all of them)")
	return cmd
}

func (s *servers) removeGroupCommand() *cobra.Command {
	cmd := s.ownCommand("remove-security-group", "Take a security group from a server",
		[]string{"removeSecurityGroup", "listServerSecurityGroups"},
		func(cmd *cobra.Command, id string, args []string) error {
			all := s.groups(id)
			group, err := all.Resolve(cmd.Context(), s.App, args[0], nil)
			if err != nil {
				return err
			}
			path := all.URL(group)
			if query := cli.Query(cmd.Flags(), "port:port_id"); len(query) > 0 {
				path += "?" + query.Encode()
			}
			return s.API().Do(cmd.Context(), http.MethodDelete, path, nil, nil)
		}, "SECURITY-GROUP")
	cmd.Flags().String("port", "", "the id of one of its ports (default: all of them)")
	return cmd
}

func (s *servers) interfacesCommand() *cobra.Command {
	return s.ownCommand("interfaces", "List a server's interfaces", []string{"listServerInterfaces"},
		func(cmd *cobra.Command, id string, _ []string) error {
			all := cli.Noun[api.ServerInterface]{
				Path: "/v1/servers/" + id + "/interfaces", Key: "interfaces", Table: interfaceTable, HasNoPages: true,
			}
			return all.PrintList(cmd, s.App, nil)
		})
}

func (s *servers) addInterfaceCommand() *cobra.Command {
	cmd := s.ownCommand("add-interface", "Attach an interface to a server: on a network, or an existing port",
		[]string{"attachInterface"}, func(cmd *cobra.Command, id string, _ []string) error {
			body := cli.Body(cmd.Flags(), "network", "port:port_id", "fixed-ip", "security-group:security_groups")
			made := cli.Noun[api.ServerInterface]{Table: interfaceTable}
			return made.Send(cmd.Context(), s.App, http.MethodPost, "/v1/servers/"+id+"/interfaces", body)
		})
	cmd.Example = "  cloudfn servers add-interface web-1 --network private --security-group web"
	flags := cmd.Flags()
	flags.String("network", "", "a network, by name or id")
	flags.String("fixed-ip", "", "an address of the network (default: any)")
	flags.String("port", "", "the id of an existing port")
	flags.StringArray("security-group", nil, "security group of the port, by name or id; may be repeated")
	cmd.MarkFlagsMutuallyExclusive("network", "port")
	cmd.MarkFlagsOneRequired("network", "port")
	for flag, kind := range map[string]string{"network": "networks", "security-group": "security_groups"} {
		s.CompleteFlag(cmd, flag, resources.Finder(s.App, kind))
	}
	return cmd
}

func (s *servers) removeInterfaceCommand() *cobra.Command {
	return s.ownCommand("remove-interface", "Detach an interface from a server, given by the id of its port",
		[]string{"detachInterface"}, func(cmd *cobra.Command, id string, args []string) error {
			if !cli.IsID(args[0]) {
				return exit.Usagef("%q is not the id of a port, as %s servers interfaces shows it", args[0], s.Name)
			}
			path := "/v1/servers/" + id + "/interfaces/" + url.PathEscape(args[0])
			return s.API().Do(cmd.Context(), http.MethodDelete, path, nil, nil)
		}, "PORT")
}

// ownCommand is a command for a server of the project, not through a connection. more are its other arguments, which
// run gets with the server's id.
func (s *servers) ownCommand(
	name, short string, operations []string, run func(cmd *cobra.Command, id string, args []string) error,
	more ...string,
) *cobra.Command {
	cmd := s.oneCommand(name, short, operations, nil)
	cmd.Use, cmd.Args = strings.Join(append([]string{name, "SERVER"}, more...), " "), cobra.ExactArgs(1+len(more))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := s.ownOnly(); err != nil {
			return err
		}
		id, err := cli.One(s.resolve(cmd.Context(), args[0]))
		if err != nil {
			return err
		}
		return run(cmd, id, args[1:])
	}
	return cmd
}
