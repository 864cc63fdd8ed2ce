package openstack

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// entry is what clouds.yaml says of a cloud, or what the environment says: by openstacksdk's keys. A value is a string,
// a list, or a map[string]any such as auth.
type entry map[string]any

// knownClouds is a clouds.yaml together with its secure.yaml.
type knownClouds struct {
	path   string // "" = no clouds.yaml
	clouds map[string]any
}

// suffixes are the names that openstacksdk reads. JSON is YAML, too.
var suffixes = []string{".yaml", ".yml", ".json"}

// configDirs are where openstacksdk looks for its files.
func configDirs() []string {
	dirs := []string{""}
	if xdg := os.Getenv("XDG_CONFIG_HOME"); xdg != "" {
		dirs = append(dirs, filepath.Join(xdg, "openstack"))
	}
	if home, err := os.UserHomeDir(); err == nil {
		dirs = append(dirs, filepath.Join(home, ".config", "openstack"))
	}
	return append(dirs, "/etc/xdg/openstack", "/etc/openstack")
}

// readFirst reads the first of these files that there is: those that are named, and then name in each directory. A file
// that cannot be read is passed over, and reported when there is no other.
func readFirst(named []string, name string) (path string, content map[string]any, err error) {
	files := slices.DeleteFunc(named, func(file string) bool { return file == "" })
	for _, dir := range configDirs() {
		for _, suffix := range suffixes {
			files = append(files, filepath.Join(dir, name+suffix))
		}
	}
	var unreadable error
	for _, file := range files {
		text, err := os.ReadFile(file) //nolint:gosec // the user names it
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			unreadable = cmp.Or(unreadable, err)
		default:
			content, err := parseYAML(text)
			if err != nil {
				return file, nil, fmt.Errorf("%s: %w", file, err)
			}
			return file, content, nil
		}
	}
	return "", nil, unreadable
}

// parseYAML reads a file whose scalars are all texts: a password of digits is no number.
func parseYAML(text []byte) (content map[string]any, err error) {
	var root yaml.Node
	if err := yaml.Unmarshal(text, &root); err != nil || root.IsZero() {
		return nil, err
	}
	asTexts(&root)
	if err := root.Decode(&content); err != nil {
		return nil, err
	}
	return content, nil
}

func asTexts(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode && slices.Contains([]string{"!!int", "!!float", "!!bool", "!!timestamp"}, n.Tag) {
		n.Tag = "!!str"
	}
	for _, inner := range n.Content {
		asTexts(inner)
	}
}

// readClouds reads clouds.yaml and secure.yaml, which goes before it. It finds secure.yaml also beside clouds.yaml.
func (c Config) readClouds() (knownClouds, error) {
	path, content, err := readFirst([]string{c.ConfigFile}, "clouds")
	if err != nil {
		return knownClouds{path: path}, err
	}
	beside := ""
	if path != "" {
		beside = filepath.Join(filepath.Dir(path), "secure.yaml")
	}
	_, secrets, err := readFirst([]string{c.SecureFile, beside}, "secure")
	if err != nil {
		return knownClouds{path: path}, err
	}
	known, _ := merged(content, secrets)["clouds"].(map[string]any)
	return knownClouds{path, known}, nil
}

// CloudNames are the clouds that clouds.yaml knows, and the file's name; none when there is no such file.
func CloudNames(c Config) (names []string, file string, err error) {
	found, err := c.readClouds()
	return slices.Sorted(maps.Keys(found.clouds)), found.path, err
}

// merged returns base with what more says. It merges maps within, and passes over what is null.
func merged(base, more map[string]any) map[string]any {
	out := maps.Clone(base)
	if out == nil {
		out = map[string]any{}
	}
	for key, value := range more {
		inner, isMap := value.(map[string]any)
		old, _ := out[key].(map[string]any)
		switch {
		case isMap:
			out[key] = merged(old, inner)
		case value != nil:
			out[key] = value
		}
	}
	return out
}

// readCloud reads the cloud c.Cloud: its profile, then its own entry, then the values of its region.
func (c Config) readCloud() (e entry, warnings []string, err error) {
	found, err := c.readClouds()
	if err != nil {
		return nil, nil, err
	}
	if found.path == "" && found.clouds == nil {
		return nil, nil, errors.New("there is no clouds.yaml: it is looked for in this directory, " +
			"in ~/.config/openstack and in /etc/openstack, or where OS_CLIENT_CONFIG_FILE says")
	}
	own, ok := found.clouds[c.Cloud].(map[string]any)
	if _, known := found.clouds[c.Cloud]; !ok && known {
		own, ok = map[string]any{}, true
	}
	if !ok {
		return nil, nil, fmt.Errorf("%s has no such cloud; expected one of %s", cmp.Or(found.path, "secure.yaml"),
			strings.Join(slices.Sorted(maps.Keys(found.clouds)), ", "))
	}
	own = normalized(own)
	base, warning, err := readProfile(cmp.Or(entry(own).text("profile"), entry(own).text("cloud")))
	if err != nil {
		return nil, nil, err
	}
	if warning != "" {
		warnings = []string{fmt.Sprintf("the cloud %s has %s: only its own settings are used", c.Cloud, warning)}
	}
	region, values := firstRegion(own)
	if region == "" {
		region, values = firstRegion(base)
	}
	all := merged(merged(base, own), values)
	all["region_name"] = region
	return all, warnings, nil
}

// readProfile reads the settings of a vendor, which clouds-public.yaml may have.
func readProfile(name string) (profile map[string]any, warning string, err error) {
	if name == "" {
		return nil, "", nil
	}
	_, content, err := readFirst(nil, "clouds-public")
	if err != nil {
		return nil, "", err
	}
	known, _ := content["public-clouds"].(map[string]any)
	found, ok := known[name].(map[string]any)
	if !ok {
		return nil, fmt.Sprintf("the profile %q, which no clouds-public.yaml has", name), nil
	}
	return normalized(found), "", nil
}

// normalized has _ for - in its keys, as openstacksdk has.
func normalized(cloud map[string]any) map[string]any {
	out := map[string]any{}
	for key, value := range cloud {
		if inner, ok := value.(map[string]any); ok {
			value = normalized(inner)
		}
		out[strings.ReplaceAll(key, "-", "_")] = value
	}
	return out
}

// firstRegion is the region that is used when none is asked for, and what is different there.
func firstRegion(cloud map[string]any) (name string, values map[string]any) {
	regions, ok := cloud["regions"]
	if !ok {
		regions = cloud["region_name"]
	}
	if list, ok := regions.([]any); ok && len(list) > 0 {
		regions = list[0]
	}
	switch first := regions.(type) {
	case string:
		name, _, _ = strings.Cut(first, ",") // several in one text are an old form
	case map[string]any:
		name = entry(first).text("name")
		values, _ = first["values"].(map[string]any)
	}
	return name, normalized(values)
}

// text is the value of the first of these keys that is set.
func (e entry) text(keys ...string) string {
	for _, key := range keys {
		if value, _ := e[key].(string); value != "" {
			return value
		}
	}
	return ""
}

// login is the value of the first of these keys that is set, in auth or beside it.
func (e entry) login(keys ...string) string {
	inside, _ := e["auth"].(map[string]any)
	for _, key := range keys {
		if value := cmp.Or(entry(inside).text(key), e.text(key)); value != "" {
			return value
		}
	}
	return ""
}
