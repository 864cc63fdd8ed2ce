// Package volumes holds the commands for volumes.
package volumes

import (
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// Noun is what the commands for volumes share.
var Noun = cli.Noun[api.Volume]{
	Path: "/v1/volumes", Key: "volumes", Arg: "VOLUME",
	Offer: func(v api.Volume) string {
		return v.ID + "\t" + v.Name + " " + strconv.Itoa(v.SizeGb) + " GB " + v.Status
	},
	Ref: func(v api.Volume) (id, name string, isOver bool) { return v.ID, v.Name, v.Status == "deleting" },
	Table: output.Table[api.Volume]{
		Name: func(v api.Volume) string { return v.ID },
		Columns: []string{
			"NAME", "STATUS*", "SIZE_GB", "TYPE+", "ZONE+", "SERVERS", "CREATED+:created_at", "ID",
		},
		Details: []string{"DESCRIPTION", "BOOTABLE", "UPDATED:updated_at"},
		Texts: map[string]func(api.Volume) string{
			"SERVERS": func(v api.Volume) string { return strings.Join(v.Servers, ", ") },
		},
	},
}

// Command holds the commands for volumes.
func Command(a *cli.App) *cobra.Command {
	list := Noun.List(a, "List the project's volumes, the newest first", "listVolumes", "status", "name")
	cli.LimitFlag(list, 0)
	list.Flags().String("status", "", "only volumes of this status, such as available or in-use")
	list.Flags().String("name", "", "only volumes whose name contains this")
	cli.Choices(list, "status", domain.VolumeStatuses()...)
	c := cli.Group("volumes", "List, show, create and delete volumes",
		list,
		Noun.Show(a, "Show a volume", "getVolume"),
		create(a),
		Noun.Delete(a, "Delete volumes, and what is on them", "deleteVolume"))
	c.Long = "List, show, create and delete volumes. VOLUME is an id, or a name that only one volume has."
	return c
}

func create(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use: "create [NAME]", Short: "Create a volume: empty, or of an image, a snapshot or another volume",
		Example: "  cloudfn volumes create data --size-gb 20\n" +
			"  cloudfn volumes create copy --source volume --id 5aa119a8-d25b-45a7-8d1b-88e127885635",
		Args: cobra.MaximumNArgs(1), Annotations: cli.Calls("createVolume"), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			body := cli.Body(cmd.Flags(), "size-gb", "description", "type", "source", "id", "zone")
			if len(args) > 0 {
				body["name"] = args[0]
			}
			return Noun.SendOnce(cmd.Context(), a, Noun.Path, body)
		},
	}
	flags := cmd.Flags()
	flags.Int("size-gb", 0, "its size in GB; needed unless the source is a snapshot or a volume")
	flags.String("description", "", "what it is for")
	flags.String("type", "", "a volume type, by id or name (default: Cinder's)")
	flags.String("source", "", "what it is made from: image, snapshot or volume (default: it is empty)")
	flags.String("id", "", "the source's id")
	flags.String("zone", "", "an availability zone of Cinder (default: its choice)")
	cli.Choices(cmd, "source", "image", "snapshot", "volume")
	a.CompleteFlag(cmd, "id", Noun.Finder(a, url.Values{}, 0))
	return cmd
}
