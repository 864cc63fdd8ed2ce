package launch

import (
	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
)

// volumeFlags add the volumes of the servers.
func volumeFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.String("boot-volume", "", "boot from a new volume of this size in GB, or from this volume, by id; or "+
		"KEY=VALUE,... of size, type, name, source (image, snapshot, volume), id, delete (with the server: true, "+
		"false)")
	flags.StringArray("volume", nil, "another volume: an existing one, by id, or the size in GB of a new one; or "+
		"KEY=VALUE,... as for --boot-volume; may be repeated")
}

// addVolumes adds the volumes of the flags to the fields that were given.
func addVolumes(cmd *cobra.Command, given map[string]any) error {
	boot, _ := cmd.Flags().GetString("boot-volume")
	volumes, _ := cmd.Flags().GetStringArray("volume")
	if boot != "" {
		volume, isID, err := parseVolume("--boot-volume", boot)
		if isID {
			volume["source"] = "volume"
		}
		if given["boot_volume"] = volume; err != nil {
			return err
		}
	}
	var all []map[string]any
	for _, text := range volumes {
		volume, isID, err := parseVolume("--volume", text)
		if err != nil {
			return err
		}
		if isID {
			volume = map[string]any{"volume_id": text}
		}
		all = append(all, volume)
	}
	if all != nil {
		given["volumes"] = all
	}
	return nil
}

func parseVolume(flag, text string) (volume map[string]any, isID bool, err error) {
	return cli.VolumeFlag{
		Name: flag, Fields: map[string]string{
			"size": "size_gb", "type": "type", "name": "name", "source": "source", "id": "id",
			"delete": "delete_on_termination",
		},
		Example: "size=20,type=ssd,name=data,source=snapshot,id=ID,delete=true",
	}.Parse(text)
}
