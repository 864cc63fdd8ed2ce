package cli

import (
	"encoding/json"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"
)

// order is a launch request, field by field. What a file says is sent as it is, so that the API says what is wrong with it.
type order map[string]json.RawMessage

// orderFlags are the fields of an order. Those of the same name but for - and _ are sent as they are.
func orderFlags(flags *pflag.FlagSet) {
	flags.String("id", "", "the order's id, a UUID: it makes the command safe to repeat")
	flags.String("flavor", "", "flavor, by name or id")
	flags.Int("min-vcpus", 0, "instead of a flavor: the smallest that has at least so many vCPUs")
	flags.Int("min-ram-mb", 0, "instead of a flavor: the smallest that has at least so much memory")
	flags.Int("min-disk-gb", 0, "instead of a flavor: the smallest that has at least so much disk")
	flags.String("image", "", "image, by name or id")
	flags.StringArray("network", nil, "network, by name or id; may be repeated")
	flags.Int("count", 0, "how many servers (default 1)")
	flags.String("key-name", "", "key pair of yours")
	flags.StringArray("security-group", nil, "security group, by name or id; may be repeated")
	flags.String("zone", "", "availability zone")
	flags.StringArray("metadata", nil, "KEY=VALUE; may be repeated")
	flags.Bool("no-start", false, "stop each server as soon as it is there")
	flags.String("on-failure", "", "keep, or rollback: all servers or none")
	flags.String("connection", "", "launch through this connection")
	flags.Bool("reuse", false, "take idle servers of the connection first")
	flags.String("callback", "", "URL that gets every event of the order")
}

// fields are the flags' fields, where they are not the flag's name.
var fields = map[string]string{"network": "networks", "security-group": "security_groups", "zone": "availability_zone", "connection": "connection_id"}

// readOrder reads an order off a file, if there is one, and off the flags, which go before it.
func (a *app) readOrder(cmd *cobra.Command, args []string, f launchFlags) (order, error) {
	o := order{}
	if f.file == "-" && f.userData == "-" {
		return nil, wrong("--file and --user-data cannot both be read from stdin")
	}
	if f.file != "" {
		text, err := a.readFile("--file", f.file)
		if err != nil {
			return nil, err
		}
		if o, err = parseOrder(f.file, text); err != nil {
			return nil, err
		}
	}
	if len(args) > 0 {
		o.set("name", args[0])
	}
	if f.userData != "" {
		text, err := a.readFile("--user-data", f.userData)
		if err != nil {
			return nil, err
		}
		o.set("user_data", string(text))
	}
	if err := o.override(cmd.Flags()); err != nil {
		return nil, err
	}
	return o, o.check(f)
}

// readFile reads a file that a flag names, or stdin.
func (a *app) readFile(flag, name string) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(a.in)
	}
	text, err := os.ReadFile(name) //nolint:gosec // the user names it
	if err != nil {
		return nil, wrong("%s: %w", flag, err)
	}
	return text, nil
}

func parseOrder(name string, text []byte) (order, error) {
	text, err := yaml.YAMLToJSON(text)
	if err != nil {
		return nil, wrong("--file: %s is neither JSON nor YAML: %w", name, err)
	}
	var o order
	if err := json.Unmarshal(text, &o); err != nil || o == nil {
		return nil, wrong("--file: %s is not an order, which is an object such as {\"name\": \"web\", \"flavor\": ..., \"image\": ...}", name)
	}
	return o, nil
}

// override sets the fields whose flags are given.
func (o order) override(flags *pflag.FlagSet) error {
	minimum := map[string]int{}
	var failure error
	flags.Visit(func(flag *pflag.Flag) {
		field := strings.ReplaceAll(flag.Name, "-", "_")
		if other, ok := fields[flag.Name]; ok {
			field = other
		}
		switch flag.Name {
		case "min-vcpus", "min-ram-mb", "min-disk-gb":
			minimum[strings.TrimPrefix(field, "min_")], _ = flags.GetInt(flag.Name)
		case "count":
			n, _ := flags.GetInt(flag.Name)
			o.set(field, n)
		case "network", "security-group":
			many, _ := flags.GetStringArray(flag.Name)
			o.set(field, many)
		case "metadata":
			failure = o.metadata(flags)
		case "no-start":
			stopped, _ := flags.GetBool(flag.Name)
			o.set("start", !stopped)
		case "reuse":
			reuse, _ := flags.GetBool(flag.Name)
			o.set(field, reuse)
		case "callback":
			o.set(field, map[string]string{"url": flag.Value.String()})
		case "generate-key":
			o.set("generate_key", true)
		case "id", "flavor", "image", "key-name", "zone", "on-failure", "connection":
			o.set(field, flag.Value.String())
		}
	})
	if len(minimum) > 0 {
		o.set("min", minimum)
	}
	o.oneSize(flags.Changed("flavor"), len(minimum) > 0)
	return failure
}

// oneSize drops the file's flavor for the flags' least size, and the other way round.
func (o order) oneSize(flavor, minimum bool) {
	if flavor && !minimum {
		delete(o, "min")
	}
	if minimum && !flavor {
		delete(o, "flavor")
	}
}

func (o order) metadata(flags *pflag.FlagSet) error {
	pairs, _ := flags.GetStringArray("metadata")
	all := map[string]string{}
	for _, pair := range pairs {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" {
			return wrong("--metadata is %q: it must be KEY=VALUE", pair)
		}
		all[key] = value
	}
	o.set("metadata", all)
	return nil
}

// check finds what is better said here than by the API, which does not know the flags.
func (o order) check(f launchFlags) error {
	if f.keyFile == "" && string(o["generate_key"]) == "true" {
		return wrong("the order has generate_key: say by --generate-key FILE where the private key is to be written, for it is shown once")
	}
	if o["instances"] != nil {
		return nil // each may have all of its own
	}
	switch {
	case o["name"] == nil:
		return wrong("a NAME for the server is missing: cloudfn launch NAME --flavor FLAVOR --image IMAGE")
	case o["flavor"] == nil && o["min"] == nil:
		return wrong("--flavor is missing, or --min-vcpus, --min-ram-mb or --min-disk-gb: cloudfn resources flavors lists them")
	case o["image"] == nil:
		return wrong("--image is missing: cloudfn resources images lists them")
	}
	return nil
}

func (o order) set(field string, value any) {
	o[field], _ = json.Marshal(value) //nolint:errchkjson // texts, numbers, and lists and maps of them
}

// text is a field that is a text.
func (o order) text(field string) (text string) {
	_ = json.Unmarshal(o[field], &text) // absent, or of another type: the API refuses it
	return text
}

// identify gives the order an id, unless it has one, so that it can be sent again.
func (o order) identify() (string, error) {
	if raw, ok := o["id"]; ok && string(raw) != "null" {
		id, err := uuid.Parse(o.text("id"))
		if err != nil {
			return "", wrong("the order's id is %s: it must be a UUID", raw)
		}
		return id.String(), nil
	}
	id := uuid.NewString()
	o.set("id", id)
	return id, nil
}

// commandLine is this command once more, with the order's id.
func (a *app) commandLine(identified bool, id string) string {
	words := append(strings.Fields(a.name), a.args...)
	if !identified {
		end := slices.Index(words, "--") // what is behind is no flag
		if end < 0 {
			end = len(words)
		}
		words = slices.Insert(words, end, "--id", id)
	}
	for n, word := range words {
		if word == "" || strings.ContainsFunc(word, special) {
			words[n] = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		}
	}
	return strings.Join(words, " ")
}

// special is what a shell may take for more than a letter.
func special(r rune) bool {
	const plain = "-_./:=@%+,"
	return (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') && !strings.ContainsRune(plain, r)
}
