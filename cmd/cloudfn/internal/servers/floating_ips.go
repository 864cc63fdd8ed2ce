package servers

import (
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/floatingips"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
)

var floatingIPTable = output.Table[api.ServerFloatingIP]{
	Name:    func(f api.ServerFloatingIP) string { return f.ID },
	Columns: []string{"ADDRESS", "STATUS*", "FIXED_ADDRESS", "NETWORK+:network_id", "PORT+:port_id", "ID"},
}

func (s *servers) floatingIPCommands() []*cobra.Command {
	return []*cobra.Command{s.floatingIPsCommand(), s.attachIPCommand(), s.detachIPCommand()}
}

func (s *servers) floatingIPsCommand() *cobra.Command {
	return s.oneCommand("floating-ips", "List a server's floating IPs", []string{"listServerFloatingIPs"},
		func(cmd *cobra.Command, id string) error {
			if err := s.ownOnly(); err != nil {
				return err
			}
			all := cli.Noun[api.ServerFloatingIP]{
				Path: floatingIPPath(id), Key: "floating_ips", Table: floatingIPTable, HasNoPages: true,
			}
			return all.PrintList(cmd, s.App, nil)
		})
}

func floatingIPPath(server string) string { return "/v1/servers/" + server + "/floating-ips" }

func (s *servers) attachIPCommand() *cobra.Command {
	cmd := s.ipCommand("attach-ip", "Attach a floating IP to a server; without one, a new one", "attachFloatingIP",
		func(cmd *cobra.Command, server, floatingIP string) error {
			body := cli.Body(cmd.Flags(), "network", "fixed-address", "move")
			if floatingIP != "" {
				body["floating_ip_id"] = floatingIP
			}
			item, err := api.Send[api.ServerFloatingIP](cmd.Context(), s.API(), http.MethodPost,
				floatingIPPath(server), body)
			if err != nil {
				return err
			}
			return output.One(&s.Print, item, floatingIPTable)
		})
	cmd.Use, cmd.Args = "attach-ip SERVER [FLOATING_IP]", cobra.RangeArgs(1, 2)
	cmd.Example = "  cloudfn servers attach-ip web\n" +
		"  cloudfn servers attach-ip web 203.0.113.7 --move"
	flags := cmd.Flags()
	flags.String("network", "", "the external network of a new one, by id or name (default: the only one it reaches)")
	flags.String("fixed-address", "", "the server's address that gets it (default: the one that reaches the network)")
	flags.Bool("move", false, "take it from where it is attached")
	return cmd
}

func (s *servers) detachIPCommand() *cobra.Command {
	cmd := s.ipCommand("detach-ip", "Detach a floating IP from a server, and keep it", "detachFloatingIP",
		func(cmd *cobra.Command, server, floatingIP string) error {
			path := floatingIPPath(server) + "/" + url.PathEscape(floatingIP)
			return s.API().Do(cmd.Context(), http.MethodDelete, path, nil, nil)
		})
	cmd.Use, cmd.Args = "detach-ip SERVER FLOATING_IP", cobra.ExactArgs(2)
	return cmd
}

// ipCommand is a command for a server and a floating IP. run gets their ids; "" = no floating IP was given.
func (s *servers) ipCommand(
	name, short, operation string, run func(cmd *cobra.Command, server, floatingIP string) error,
) *cobra.Command {
	cmd := s.oneCommand(name, short, []string{operation, "listFloatingIPs"}, nil)
	complete := cmd.ValidArgsFunction
	cmd.ValidArgsFunction = func(
		cmd *cobra.Command, args []string, begun string,
	) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) == 1 {
			return s.Complete(2, floatingips.Noun.Finder(s.App, nil, 0))(cmd, args, begun)
		}
		return complete(cmd, args, begun)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := s.ownOnly(); err != nil {
			return err
		}
		id, err := cli.One(s.resolve(cmd.Context(), args[0]))
		if err != nil || len(args) == 1 {
			if err != nil {
				return err
			}
			return run(cmd, id, "")
		}
		floatingIP, err := floatingips.Noun.Resolve(cmd.Context(), s.App, args[1], nil)
		if err != nil {
			return err
		}
		return run(cmd, id, floatingIP)
	}
	return cmd
}
