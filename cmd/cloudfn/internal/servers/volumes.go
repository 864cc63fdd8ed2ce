package servers

import (
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/volumes"
)

var volumeTable = output.Table[api.ServerVolume]{
	Name: func(v api.ServerVolume) string { return v.ID },
	Columns: []string{
		"NAME", "STATUS*", "SIZE_GB", "DEVICE", "BOOT", "DELETE_WITH_SERVER:delete_on_termination", "ID",
	},
}

func (s *servers) volumesCommand() *cobra.Command {
	return s.oneCommand("volumes", "List a server's volumes", []string{"listServerVolumes"},
		func(cmd *cobra.Command, id string) error {
			if err := s.ownOnly(); err != nil {
				return err
			}
			all := cli.Noun[api.ServerVolume]{
				Path: "/v1/servers/" + id + "/volumes", Key: "volumes", Table: volumeTable, HasNoPages: true,
			}
			return all.PrintList(cmd, s.App, nil)
		})
}

// ownOnly rejects a connection: what Nova and Neutron have of a server takes a token of its project.
func (s *servers) ownOnly() error {
	if s.connection != "" {
		return exit.Usagef("--connection cannot be combined with it: it takes a token of the server's project")
	}
	return nil
}

func (s *servers) attachCommand() *cobra.Command {
	cmd := s.volumeCommand("attach", "Attach a volume to a server", "attachVolume",
		func(cmd *cobra.Command, path, volume string) error {
			body := cli.Body(cmd.Flags(), "delete-with-server:delete_on_termination")
			body["volume_id"] = volume
			item, err := api.Send[api.ServerVolume](cmd.Context(), s.API(), http.MethodPost, path, body)
			if err != nil {
				return err
			}
			return output.One(&s.Print, item, volumeTable)
		})
	cmd.Flags().Bool("delete-with-server", false, "delete the volume when the server is deleted")
	return cmd
}

func (s *servers) detachCommand() *cobra.Command {
	return s.volumeCommand("detach", "Detach a volume from a server", "detachVolume",
		func(cmd *cobra.Command, path, volume string) error {
			return s.API().Do(cmd.Context(), http.MethodDelete, path+"/"+volume, nil, nil)
		})
}

// volumeCommand is a command for a server and a volume. run gets the path of the server's volumes, and the volume's id.
func (s *servers) volumeCommand(
	name, short, operation string, run func(cmd *cobra.Command, path, volume string) error,
) *cobra.Command {
	cmd := s.oneCommand(name, short, []string{operation, "listVolumes"}, nil)
	cmd.Use, cmd.Args = name+" SERVER VOLUME", cobra.ExactArgs(2)
	complete := cmd.ValidArgsFunction
	cmd.ValidArgsFunction = func(
		cmd *cobra.Command, args []string, begun string,
	) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) == 1 {
			return s.Complete(2, volumes.Noun.Finder(s.App, nil, 0))(cmd, args, begun)
		}
		return complete(cmd, args, begun)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := s.ownOnly(); err != nil {
			return err
		}
		id, err := cli.One(s.resolve(cmd.Context(), args[0]))
		if err != nil {
			return err
		}
		volume, err := volumes.Noun.Resolve(cmd.Context(), s.App, args[1], nil)
		if err != nil {
			return err
		}
		return run(cmd, "/v1/servers/"+id+"/volumes", url.PathEscape(volume))
	}
	return cmd
}
