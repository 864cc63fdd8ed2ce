package servers

import (
	"context"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
)

func (s *servers) snapshotCommand() *cobra.Command {
	cmd := s.actCommand("snapshot", "Make images of servers")
	cmd.Long = `Make an image of each server's disk. The result has the image's id; --wait waits until the image is
active, so that servers can be launched from it.`
	cmd.Example = "  cloudfn servers snapshot web-1 --name web-1-before-upgrade --wait"
	cmd.Annotations = cli.Calls("actOnServer", "actOnServers", "getServerAction", "listResources", "listServers")
	idFlag(cmd)
	cmd.Flags().String("name", "", "the image's name (default the server's)")
	cli.Choices(cmd, "name")
	return cmd
}

// pollImage waits for the image of a snapshot with the caller's own token.
func (s *servers) pollImage(ctx context.Context, w *waiter) error {
	query := url.Values{"kinds": {"images"}}
	found, err := api.Get[api.Resources](ctx, s.API(), "/v1/resources", query)
	if err != nil {
		return err
	}
	w.note = ", and its image is not active yet"
	for _, image := range cli.Value(found.Value.Images) {
		if image.ID == w.ImageID {
			w.note = ", and its image is " + image.Status
			w.isDone = image.Status == "active"
		}
	}
	return nil
}
