package servers

import (
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// sshTarget says how to reach a server by SSH.
type sshTarget struct {
	login, identity, network string
	isFixed                  bool
}

// SSH connects to a server by the ssh of the machine.
func SSH(a *cli.App) *cobra.Command {
	s := &servers{App: a}
	var target sshTarget
	cmd := &cobra.Command{
		Use: "ssh SERVER [-- COMMAND...]", Short: "Connect to a server by SSH", Args: cobra.MinimumNArgs(1),
		Long: `Connect to a server by SSH, with the ssh of this machine and its configuration. The address is the
server's floating IP, or its first fixed address if it has none. The user is the one that its image names: its
os_admin_user, or the default user of its os_distro. What follows -- goes to ssh: a command to run on the server.`,
		Example: "  cloudfn ssh web\n" +
			"  cloudfn ssh web --identity web.key\n" +
			"  cloudfn ssh web --login debian -- uptime",
		ValidArgsFunction: s.Complete(1, s.finder(filter{})),
		Annotations:       cli.Calls("listServers", "getServer"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.TextOnly(cmd, "table"); err != nil {
				return err
			}
			id, err := cli.One(s.resolve(cmd.Context(), args[0]))
			if err != nil {
				return err
			}
			server, err := api.Get[api.Server](cmd.Context(), a.API(), "/v1/servers/"+id, nil)
			if err != nil {
				return err
			}
			line, err := target.command(server.Value, args[1:])
			if err != nil {
				return err
			}
			return run(line)
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&target.login, "login", "l", "", "the user to log in as (default the one that the image names)")
	flags.StringVarP(&target.identity, "identity", "i", "", "file with the private key (default as ssh is configured)")
	flags.BoolVar(&target.isFixed, "fixed", false, "connect to a fixed address, though there is a floating IP")
	flags.StringVar(&target.network, "network", "", "connect to an address on this network, by name")
	return cmd
}

// command is the command line of ssh for a server.
func (t sshTarget) command(s api.Server, command []string) ([]string, error) {
	address, err := t.address(s)
	if err != nil {
		return nil, err
	}
	login := cmp.Or(t.login, domain.Deref(s.LoginUser))
	if login == "" {
		return nil, exit.Usagef("the image of %s does not say which user to log in as: give --login, "+
			"which is often the name of the distribution", s.Name)
	}
	line := []string{"ssh", "-l", login}
	if t.identity != "" {
		line = append(line, "-i", t.identity)
	}
	return append(append(line, "--", address), command...), nil
}

// address chooses the server's address: a floating IP first, and IPv4 first of the others.
func (t sshTarget) address(s api.Server) (string, error) {
	all := slices.DeleteFunc(slices.Clone(s.Addresses), func(a api.Address) bool {
		_, err := netip.ParseAddr(a.IP) // so it cannot be an option of ssh
		return err != nil || t.isFixed && a.Type != "fixed" || t.network != "" && a.Network != t.network
	})
	slices.SortStableFunc(all, func(a, b api.Address) int { // floating before fixed
		return cmp.Or(strings.Compare(string(b.Type), string(a.Type)), cmp.Compare(a.Version, b.Version))
	})
	switch {
	case len(all) > 0:
		return all[0].IP, nil
	case len(s.Addresses) == 0:
		return "", exit.Errorf(exit.Conflict, "%s is %s and has no address", s.Name, strings.ToLower(s.Status))
	}
	return "", exit.Usagef("%s has no such address: it has %s", s.Name,
		addresses(s, func(a api.Address) string { return fmt.Sprintf("%s %s (%s)", a.IP, a.Network, a.Type) }))
}

// run replaces the process by ssh, which so has the terminal and the signals, and ends with its exit code.
func run(line []string) error {
	path, err := exec.LookPath(line[0])
	if err != nil {
		return exit.Errorf(exit.Unavailable, "ssh is not installed on this machine: %w", err)
	}
	err = syscall.Exec(path, line, os.Environ()) //nolint:gosec // the user's own ssh
	return exit.Failedf("ssh could not be started: %w", err)
}
