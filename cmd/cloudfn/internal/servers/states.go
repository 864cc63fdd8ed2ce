package servers

import (
	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// stateCommands are the commands for what Nova does to a server that stays where it is.
func (s *servers) stateCommands() []*cobra.Command {
	return []*cobra.Command{
		s.actCommand(string(domain.Pause), "Stop servers' processors, with their memory on their hosts",
			"  cloudfn servers pause web-1 --wait"),
		s.actCommand(string(domain.Unpause), "Let paused servers run again", ""),
		s.actCommand(string(domain.Suspend), "Write servers' memory to their hosts' disks, and stop them",
			"  cloudfn servers suspend web-1 web-2 --wait"),
		s.actCommand(string(domain.Resume), "Let suspended servers run again", ""),
		s.lockCommand(),
		s.actCommand(string(domain.Unlock), "End the lock of servers", ""),
		s.renameCommand(),
	}
}

func (s *servers) lockCommand() *cobra.Command {
	cmd := s.actCommand(string(domain.Lock), "Reject what changes servers, until they are unlocked",
		"  cloudfn servers lock db-1 --reason 'migration until Friday'")
	cmd.Long = `Have Nova reject all actions on servers, until they are unlocked. It holds for users of the project, and
not for the cloud's admins. What an admin has locked only an admin unlocks.`
	cmd.Flags().String("reason", "", "why, for others who see the lock (a cloud of Nova 2.73 or newer)")
	return cmd
}

func (s *servers) renameCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "rename SERVER NAME", Short: "Give a server another name", Args: cobra.ExactArgs(2),
		Example:           "  cloudfn servers rename web-1 web-old",
		ValidArgsFunction: s.Complete(1, s.finder(filter{})),
		Annotations:       cli.Calls("actOnServer", "listServers"),
		RunE: func(cmd *cobra.Command, args []string) error {
			targets, err := s.resolve(cmd.Context(), args[0])
			if _, err = cli.One(targets, err); err != nil {
				return err
			}
			body := cli.Body(cmd.Flags(), "id")
			body["name"] = args[1]
			return s.act(cmd.Context(), targets, string(domain.Rename), body, cli.Wait{})
		},
	}
	idFlag(cmd)
	return cmd
}
