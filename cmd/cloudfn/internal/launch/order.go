package launch

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/leases"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/resources"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// order is a launch request, field by field. A file's fields are sent as they are, so that the API says what is wrong.
type order map[string]any

// fields are the fields of an order that flags set.
var fields = []string{
	"id", "flavor", "min-vcpus:min.vcpus", "min-ram-mb:min.ram_mb", "min-disk-gb:min.disk_gb", "image",
	"network:networks", "count", "key-name", "security-group:security_groups", "zone:availability_zone",
	"metadata", "on-failure", "connection:connection_id", "reuse", "callback:callback.url",
	"reservation:reservation_id", "tag:tags", "description", "config-drive", "server-group", "hint:scheduler_hints",
}

func orderFlags(a *cli.App, cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.String("id", "", "the order's id, a UUID: with it, the command can be repeated safely")
	flags.String("flavor", "", "flavor, by name or id")
	flags.Int("min-vcpus", 0, "instead of a flavor, or of its size: the smallest with at least so many vCPUs")
	flags.Int("min-ram-mb", 0, "instead of a flavor, or of its size: the smallest with at least so much memory")
	flags.Int("min-disk-gb", 0, "instead of a flavor, or of its size: the smallest with at least so much disk")
	flags.String("image", "", "image, by name or id")
	flags.StringArray("network", nil, "network, by name or id; may be repeated")
	flags.StringArray("network-group", nil, "a security group of one --network, instead of those of "+
		"--security-group: NETWORK=GROUP; may be repeated")
	flags.String("fixed-ip", "", "address of the server in the only --network")
	flags.StringArray("port", nil, "id of an existing port for the server; may be repeated")
	flags.Int("count", 0, "how many servers (default 1)")
	flags.String("key-name", "", "key pair of yours")
	flags.StringArray("security-group", nil, "security group, by name or id; may be repeated")
	flags.String("zone", "", "availability zone")
	cli.Pairs(cmd, "metadata", "KEY=VALUE; may be repeated")
	flags.StringArray("tag", nil, "tag of the servers; may be repeated")
	flags.String("description", "", "text about the servers")
	flags.Bool("config-drive", false, "give the servers their metadata on a disk, too")
	flags.String("server-group", "", "server group, by name or id")
	cli.Pairs(cmd, "hint", "scheduler hint KEY=VALUE; may be repeated (lists are for --file)")
	volumeFlags(cmd)
	flags.String("floating-ip", "", "give each server a floating IP: of the only external network that it reaches, "+
		"of =NETWORK, or the project's =ADDRESS")
	flags.Lookup("floating-ip").NoOptDefVal = "true"
	flags.Bool("no-start", false, "stop each server when it is built")
	flags.String("on-failure", "", "keep, or rollback: all servers or none")
	a.ConnectionFlag(cmd, "launch through this connection")
	flags.Bool("reuse", false, "take idle servers of the connection first")
	flags.String("callback", "", "URL that gets every event of the order")
	leaseFlags(a, cmd)
	for flag, kind := range map[string]string{
		"flavor": "flavors", "image": "images", "network": "networks", "key-name": "keypairs",
		"security-group": "security_groups", "zone": "zones",
	} {
		a.CompleteFlag(cmd, flag, resources.Finder(a, kind))
	}
	cli.Choices(cmd, "on-failure", "keep", "rollback")
}

// read reads the order from a file, if there is one, and from the flags, which override it.
func (l *launch) read(cmd *cobra.Command, args []string) error {
	if l.file == "-" && l.userData == "-" {
		return exit.Usagef("--file and --user-data cannot both be read from stdin")
	}
	l.order = order{}
	if l.file != "" {
		text, err := l.ReadFile("--file", l.file)
		if err != nil {
			return err
		}
		if l.order, err = parse(l.file, text); err != nil {
			return err
		}
	}
	if len(args) > 0 {
		l.order["name"] = args[0]
	}
	if l.userData != "" {
		data, err := l.ReadFile("--user-data", l.userData)
		if err != nil {
			return err
		}
		l.order.setUserData(data)
	}
	if err := l.override(cmd); err != nil {
		return err
	}
	if err := l.check(); err != nil {
		return err
	}
	err := l.identify()
	l.resume = l.commandLine(cmd.Flags().Changed("id"))
	return err
}

// setUserData replaces both forms of user_data. JSON holds only text, and the API takes no NUL in it.
func (o order) setUserData(data []byte) {
	delete(o, "user_data")
	delete(o, "user_data_base64")
	if utf8.Valid(data) && bytes.IndexByte(data, 0) < 0 {
		o["user_data"] = string(data)
		return
	}
	o["user_data_base64"] = data // which encoding/json encodes
}

func parse(name string, text []byte) (order, error) {
	text, err := yaml.YAMLToJSON(text)
	if err != nil {
		return nil, exit.Usagef("--file: %s is neither JSON nor YAML: %w", name, err)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil || fields == nil {
		return nil, exit.Usagef("--file: %s is not an order, which is an object such as "+
			"{\"name\": \"web\", \"flavor\": ..., \"image\": ...}", name)
	}
	o := order{}
	for field, value := range fields {
		o[field] = value
	}
	return o, nil
}

// override sets the fields of the flags. A flavor and a minimum size exclude each other.
func (l *launch) override(cmd *cobra.Command) error {
	given := cli.Body(cmd.Flags(), slices.Concat(fields, leaseFields)...)
	cli.SetBy(cmd.Flags(), "", "port:networks", "fixed-ip:networks[0].fixed_ip", "boot-volume:boot_volume",
		"volume:volumes", "floating-ip:floating_ip", "no-start:start", "generate-key:generate_key",
		"user-data:user_data", "user-data:user_data_base64", "lease:lease", "lease:lease.end", "lease:lease.duration",
		"before-end:lease.before_end")
	if err := addLease(cmd, given); err != nil {
		return err
	}
	if err := addNetworks(cmd, given); err != nil {
		return err
	}
	if err := addVolumes(cmd, given); err != nil {
		return err
	}
	addFloatingIP(cmd, given)
	maps.Copy(l.order, given)
	if cmd.Flags().Changed("no-start") {
		isStopped, _ := cmd.Flags().GetBool("no-start")
		l.order["start"] = !isStopped
	}
	if l.keyFile != "" {
		l.order["generate_key"] = true
	}
	switch {
	case given["flavor"] != nil && given["min"] == nil:
		delete(l.order, "min")
	case given["min"] != nil && given["flavor"] == nil:
		delete(l.order, "flavor")
	}
	return nil
}

// addFloatingIP adds the floating IP, which is true without a value of its flag.
func addFloatingIP(cmd *cobra.Command, given map[string]any) {
	switch floating, _ := cmd.Flags().GetString("floating-ip"); floating {
	case "":
	case "true":
		given["floating_ip"] = true
	default:
		given["floating_ip"] = floating
	}
}

// addNetworks makes objects of the networks with an address, security groups or a port.
func addNetworks(cmd *cobra.Command, given map[string]any) error {
	names, _ := cmd.Flags().GetStringArray("network")
	address, _ := cmd.Flags().GetString("fixed-ip")
	ports, _ := cmd.Flags().GetStringArray("port")
	groups, _ := cmd.Flags().GetStringArray("network-group")
	if address == "" && len(ports)+len(groups) == 0 {
		return nil
	}
	var networks []map[string]any
	for _, name := range names {
		networks = append(networks, map[string]any{"network": name})
	}
	for _, text := range groups {
		at := strings.LastIndex(text, "=")
		n := slices.Index(names, text[:max(at, 0)])
		if at < 1 || n < 0 || at == len(text)-1 {
			return exit.Usagef("--network-group is %q: it must be NETWORK=GROUP, with a network of --network", text)
		}
		all, _ := networks[n]["security_groups"].([]string)
		networks[n]["security_groups"] = append(all, text[at+1:])
		cli.SetBy(cmd.Flags(), "", fmt.Sprintf("network-group:networks[%d].security_groups", n))
	}
	if address != "" {
		if len(names) != 1 {
			return exit.Usagef("--fixed-ip takes exactly one --network: for more give the order with --file")
		}
		networks[0]["fixed_ip"] = address
	}
	for _, port := range ports {
		networks = append(networks, map[string]any{"port_id": port})
	}
	given["networks"] = networks
	return nil
}

// check finds what the API could not explain as well: it does not know the flags.
func (l *launch) check() error {
	o := l.order
	var wantsKey bool
	_ = json.Unmarshal(o.raw("generate_key"), &wantsKey)
	switch {
	case wantsKey && l.keyFile == "":
		return exit.Usagef(
			"the order has generate_key: say by --generate-key FILE where to write the private key")
	case o["instances"] != nil: // each may have all fields
		return nil
	case o["name"] == nil:
		return exit.Usagef(
			"a NAME for the server is missing: cloudfn launch NAME --flavor FLAVOR --image IMAGE")
	case o["flavor"] == nil && o["min"] == nil:
		return exit.Usagef(
			"--flavor is missing, or --min-vcpus, --min-ram-mb or --min-disk-gb: cloudfn resources flavors lists them")
	case o["image"] == nil && o["boot_volume"] == nil:
		return exit.Usagef("--image is missing: cloudfn resources images lists them")
	}
	return nil
}

// raw is a field as JSON.
func (o order) raw(field string) []byte {
	text, _ := json.Marshal(o[field]) //nolint:errchkjson // what JSON or flags gave
	return text
}

// text is a field that is a text; the API rejects any other type.
func (o order) text(field string) (text string) {
	_ = json.Unmarshal(o.raw(field), &text)
	return text
}

// identify gives the order an id, unless it has one, so that it can be sent again.
func (l *launch) identify() error {
	if raw := l.order.raw("id"); string(raw) != "null" {
		id, err := uuid.Parse(l.order.text("id"))
		if err != nil {
			return exit.Usagef("the order's id is %s: it must be a UUID", raw)
		}
		l.id = id.String()
		return nil
	}
	l.id = uuid.NewString()
	l.order["id"] = l.id
	return nil
}

// commandLine is this command, with the order's id.
func (l *launch) commandLine(hasID bool) string {
	words := append(strings.Fields(l.Name), l.Args...)
	if !hasID {
		end := slices.Index(words, "--") // no flags stand behind it
		if end < 0 {
			end = len(words)
		}
		words = slices.Insert(words, end, "--id", l.id)
	}
	for n, word := range words {
		if word == "" || strings.ContainsFunc(word, isSpecial) {
			words[n] = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		}
	}
	return strings.Join(words, " ")
}

// isSpecial reports whether a shell may take a character for more than itself.
func isSpecial(r rune) bool {
	const plain = "-_./:=@%+,"
	return (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') && !strings.ContainsRune(plain, r)
}

// leaseFields are the fields of an order that the flags of its lease set, but for its end and durations.
var leaseFields = []string{"lease-name:lease.name", "lease-start:lease.start", "on-end:lease.on_end"}

// leaseFlags add the order's lease and the reservation whose hosts it uses.
func leaseFlags(a *cli.App, cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.String("lease", "",
		"lease the servers for so long: 8h, 2d, P1M (a month); or until a time: 2027-01-01T18:00:00Z")
	cli.Choices(cmd, "lease", "8h", "2d", "1w", "P1M")
	a.UntilOrNow(cmd, "lease-start", "when the lease begins, which shelves the servers until then (default now)")
	flags.String("lease-name", "", "the lease's name (default NAME)")
	leases.WarningFlag(cmd, "the lease's end")
	flags.String("on-end", "", "what happens to the servers at the lease's end: "+strings.Join(domain.OnEnds(), ", "))
	cli.Choices(cmd, "on-end", domain.OnEnds()...)
	flags.String("reservation", "", "launch on the hosts of this reservation")
}

// addLease adds what the flags say of the lease's end and durations to the fields that were given.
func addLease(cmd *cobra.Command, given map[string]any) error {
	lease, ok := given["lease"].(map[string]any)
	if !ok {
		lease = map[string]any{}
	}
	end, _ := cmd.Flags().GetString("lease")
	if at, isTime, err := cli.ParseTime(end, time.Local); err != nil {
		return exit.Usagef("--lease: %w", err)
	} else if isTime {
		lease["end"] = at.UTC().Format(time.RFC3339)
	} else if err := cli.AddPeriod(cmd, lease, "lease", "duration"); err != nil {
		return fmt.Errorf("%w; or until when: a time such as 2027-01-01T18:00:00Z", err)
	}
	if err := leases.AddWarning(cmd, lease); err != nil {
		return err
	}
	if len(lease) == 0 {
		return nil
	}
	if end == "" {
		return exit.Usagef("--lease is missing: say for how long, such as 8h, or until when")
	}
	given["lease"] = lease
	return nil
}
