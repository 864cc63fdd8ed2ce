package servers

import (
	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/resources"
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
		s.resizeCommand(),
		s.actCommand(string(domain.ConfirmResize), "Keep the new flavor of resized servers",
			"  cloudfn servers confirm-resize web-1 --wait"),
		s.actCommand(string(domain.RevertResize), "Give resized servers their old flavor and host back",
			"  cloudfn servers revert-resize web-1 --wait"),
		s.rebuildCommand(),
		s.rescueCommand(),
		s.actCommand(string(domain.Unrescue), "Boot rescued servers from their own disks again", ""),
	}
}

func (s *servers) rescueCommand() *cobra.Command {
	cmd := s.actCommand(string(domain.Rescue), "Boot servers from another image, to repair their disks",
		"  cloudfn servers rescue db-1 --image debian-13 --wait\n  cloudfn servers unrescue db-1 --wait")
	cmd.Long = `Boot servers from another image, with their own disks as second ones, until they are unrescued. The
password that Nova makes for one server is printed once; not every hypervisor sets it.`
	cmd.Flags().String("image", "", "the image, by id or name (default one that Nova chooses)")
	idFlag(cmd)
	s.CompleteFlag(cmd, "image", resources.Finder(s.App, "images"))
	return cmd
}

func (s *servers) rebuildCommand() *cobra.Command {
	var wait cli.Wait
	cmd := s.oneCommand("rebuild", "Recreate a server's disk from an image", []string{"actOnServer", "getServer"},
		func(cmd *cobra.Command, id string) error {
			if !cmd.Flags().Changed("confirm-rebuild") {
				return exit.Usagef("rebuild destroys what is on the server's disk: add --confirm-rebuild to do so")
			}
			body := cli.Body(cmd.Flags(), "image", "confirm-rebuild", "id")
			return s.act(cmd.Context(), []cli.Target{{Given: cmd.Flags().Arg(0), ID: id}}, string(domain.Rebuild), body,
				wait)
		})
	cmd.Long = `Recreate a server's disk from an image, by default its own. What is on the disk is lost. Its id,
addresses, name, key, metadata and user data stay. A server that boots from a volume needs --image.`
	cmd.Example = "  cloudfn servers rebuild web-1 --image debian-13 --confirm-rebuild --wait"
	cmd.Flags().String("image", "", "the image, by id or name (default the server's own)")
	cmd.Flags().Bool("confirm-rebuild", false, "yes, what is on the server's disk may be lost")
	idFlag(cmd)
	wait.Flags(cmd, "it is done")
	s.CompleteFlag(cmd, "image", resources.Finder(s.App, "images"))
	return cmd
}

func (s *servers) resizeCommand() *cobra.Command {
	cmd := s.actCommand(string(domain.Resize), "Give servers another flavor",
		"  cloudfn servers resize web-1 --flavor m1.large --wait\n  cloudfn servers confirm-resize web-1")
	cmd.Long = `Give servers that are active or stopped another flavor. Nova restarts them, by default on another
host. Then they wait, in the status VERIFY_RESIZE, for confirm-resize or revert-resize; until then both flavors count
for the quota of the project. Some clouds confirm automatically after a time, which Nova does not show.`
	cmd.Flags().String("flavor", "", "the flavor, by id or name")
	_ = cmd.MarkFlagRequired("flavor")
	idFlag(cmd)
	s.CompleteFlag(cmd, "flavor", resources.Finder(s.App, "flavors"))
	return cmd
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
