package connections

import (
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
)

// fields are the fields of a connection, and of a request for one, that flags set.
var fields = []string{
	"project:project_id", "why", "kind", "name", "for", "actions", "expires:expires_at", "idle-timeout", "role:roles",
	"id", "auth-url", "region",
	"quota-instances:quota.instances", "quota-vcpus:quota.vcpus", "quota-ram-mb:quota.ram_mb",
	"image:limits.images", "network:limits.networks", "flavor:limits.flavors", "only-region:limits.regions",
}

// quotaFlags and limitFlags add what a connection may be used for. byDefault is what holds without a flag.
func quotaFlags(flags *pflag.FlagSet, byDefault string) {
	flags.Int("quota-instances", 0, "how many servers at once ("+byDefault+")")
	flags.Int("quota-vcpus", 0, "how many vCPUs at once ("+byDefault+")")
	flags.Int("quota-ram-mb", 0, "how much memory at once ("+byDefault+")")
}

func limitFlags(flags *pflag.FlagSet, byDefault string) {
	flags.StringSlice("image", nil, "only these images, by id ("+byDefault+")")
	flags.StringSlice("network", nil, "only these networks, by id ("+byDefault+")")
	flags.StringSlice("flavor", nil, "only these flavors, by id or name ("+byDefault+")")
	flags.StringSlice("only-region", nil, "only these regions ("+byDefault+")")
}

// delegationFlags add how a new connection reaches OpenStack. usual is the kind without --kind.
func delegationFlags(cmd *cobra.Command, usual string) {
	flags := cmd.Flags()
	flags.String("kind", "", "trust or application_credential"+usual)
	flags.String("idle-timeout", "", "it also ends when it was not used for as long: 1h to 8784h")
	flags.StringSlice("role", nil, "of a trust: which of your roles (default member)")
	flags.String("id", "", "of an application credential: its id")
	flags.String("auth-url", "", "of an application credential of another cloud: its Keystone")
	flags.String("region", "", "of an application credential: the region to act in")
	cli.SecretFileFlag(cmd, "of an application credential: the file with its secret (- for stdin)")
	cli.Choices(cmd, "kind", string(api.Trust), string(api.ApplicationCredential))
}

// addSecret adds the secret of an application credential to a request.
func addSecret(a *cli.App, cmd *cobra.Command, body map[string]any) error {
	return a.Secret(cmd.Context(), cmd, "Secret of the application credential: ", body)
}

// delegation is the request that flags make. It has the secret of an application credential.
func delegation(a *cli.App, cmd *cobra.Command) (map[string]any, error) {
	body := cli.Body(cmd.Flags(), fields...)
	addUsableBy(a, cmd, body)
	if body["kind"] != string(api.ApplicationCredential) && !cmd.Flags().Changed("secret-file") {
		return body, nil
	}
	return body, addSecret(a, cmd, body)
}

// keystoneID is an id of a user or a project; those of users from LDAP are twice as long.
var keystoneID = regexp.MustCompile("^[0-9a-f]{32}([0-9a-f]{32})?$")

// addUsableBy adds --usable-by to a request: ids as they are, and names as objects.
func addUsableBy(a *cli.App, cmd *cobra.Command, body map[string]any) {
	if !cmd.Flags().Changed("usable-by") {
		return
	}
	given, _ := cmd.Flags().GetStringSlice("usable-by")
	entries := []any{}
	for _, text := range given {
		kind, name, isName := strings.Cut(text, ":")
		if isName && (kind == "user" || kind == "project") {
			entries = append(entries, usableName(kind, name))
			continue
		}
		if !keystoneID.MatchString(text) {
			a.Notef("warning: --usable-by %s does not look like an id of Keystone; "+
				"a name is user:NAME or project:NAME", text)
		}
		entries = append(entries, text)
	}
	body["usable_by"] = entries
}

// usableName is a user or a project by name; its domain may stand before a slash.
func usableName(kind, name string) map[string]string {
	domain, rest, hasDomain := strings.Cut(name, "/")
	switch {
	case !hasDomain:
		return map[string]string{kind: name}
	case domain == "":
		return map[string]string{kind: rest}
	}
	return map[string]string{kind: rest, "domain": domain}
}
