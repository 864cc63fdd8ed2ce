package cli

import (
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
)

// VolumeFlag is a flag whose value is a volume: the size in GB of a new one, the id of an existing one, or pairs.
type VolumeFlag struct {
	Name    string            // with its dashes
	Fields  map[string]string // of a request, by the keys of the pairs; it has size and id
	Example string            // of pairs, for errors
}

// Parse reads the fields of a volume. isID reports whether the text is an id alone.
func (f VolumeFlag) Parse(text string) (volume map[string]any, isID bool, err error) {
	if size, err := strconv.Atoi(text); err == nil {
		return map[string]any{f.Fields["size"]: size}, false, nil
	}
	if uuid.Validate(text) == nil {
		return map[string]any{f.Fields["id"]: text}, true, nil
	}
	volume = map[string]any{}
	for pair := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(pair, "=")
		field, ok := f.Fields[key]
		var typed any = value
		switch key {
		case "size":
			typed, err = strconv.Atoi(value)
		case "delete":
			typed, err = strconv.ParseBool(value)
		}
		if !ok || value == "" || err != nil {
			return volume, false, exit.Usagef("%s: %q is wrong: give a size in GB, an id, or pairs such as %s",
				f.Name, pair, f.Example)
		}
		volume[field] = typed
	}
	return volume, false, nil
}
