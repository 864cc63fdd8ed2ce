package launch

import (
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
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

// volumeKeys are the fields of a volume by their keys in a flag.
var volumeKeys = map[string]string{
	"size": "size_gb", "type": "type", "name": "name", "source": "source", "id": "id",
	"delete": "delete_on_termination",
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

// parseVolume reads a size, an id, or keys with values. isID reports whether the text is an id alone.
func parseVolume(flag, text string) (volume map[string]any, isID bool, err error) {
	if size, err := strconv.Atoi(text); err == nil {
		return map[string]any{"size_gb": size}, false, nil
	}
	if uuid.Validate(text) == nil {
		return map[string]any{"id": text}, true, nil
	}
	volume = map[string]any{}
	for pair := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(pair, "=")
		field, ok := volumeKeys[key]
		var typed any = value
		switch key {
		case "size":
			typed, err = strconv.Atoi(value)
		case "delete":
			typed, err = strconv.ParseBool(value)
		}
		if !ok || value == "" || err != nil {
			return volume, false, exit.Usagef("%s: %q is wrong: give a size in GB, an id, or pairs such as "+
				"size=20,type=ssd,name=data,source=snapshot,id=ID,delete=true", flag, pair)
		}
		volume[field] = typed
	}
	return volume, false, nil
}
