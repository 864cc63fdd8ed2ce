package cli

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/pflag"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
)

// limits are what connections create is told of what may be used.
type limits struct{ images, networks, flavors, regions []string }

func (l *limits) addTo(flags *pflag.FlagSet) {
	flags.StringSliceVar(&l.images, "image", nil, "only these images, by id (default any)")
	flags.StringSliceVar(&l.networks, "network", nil, "only these networks, by id (default any)")
	flags.StringSliceVar(&l.flavors, "flavor", nil, "only these flavors, by id or name (default any)")
	flags.StringSliceVar(&l.regions, "only-region", nil, "only these regions (default any)")
}

// request is nil when nothing is limited.
func (l *limits) request() *api.ConnectionLimits {
	var out api.ConnectionLimits
	limited := false
	for _, part := range []struct {
		given []string
		into  **[]string
	}{{l.images, &out.Images}, {l.networks, &out.Networks}, {l.flavors, &out.Flavors}, {l.regions, &out.Regions}} {
		if len(part.given) > 0 {
			*part.into, limited = &part.given, true
		}
	}
	if !limited {
		return nil
	}
	return &out
}

// limitsText shows what a connection is limited to.
func limitsText(l api.ConnectionLimits) string {
	var parts []string
	for _, part := range []struct {
		name  string
		given *[]string
	}{{"images", l.Images}, {"networks", l.Networks}, {"flavors", l.Flavors}, {"regions", l.Regions}} {
		if part.given != nil {
			parts = append(parts, part.name+" "+strings.Join(*part.given, ", "))
		}
	}
	return strings.Join(parts, "; ")
}

// usableText shows who may act through a connection, by name where that is known.
func usableText(c api.Connection) string {
	names := map[string]string{}
	for _, n := range value(c.UsableByNames) {
		name, in := value(n.User)+value(n.Project), value(n.Domain)
		if in != "" {
			in = " of " + in
		}
		names[n.ID] = " (" + name + in + ")"
	}
	var all []string
	for _, id := range value(c.UsableBy) {
		all = append(all, id+names[id])
	}
	return strings.Join(all, ", ")
}

// keystoneID is an id as Keystone makes them: of a user, or of a project; twice as long for a user of LDAP.
var keystoneID = regexp.MustCompile("^[0-9a-f]{32}([0-9a-f]{32})?$")

// usableEntries are ids as they are, and names as the API takes them.
func (a *app) usableEntries(given []string) (*[]api.UsableEntry, error) {
	entries := []api.UsableEntry{}
	for _, text := range given {
		var entry any = text
		switch kind, name, isName := strings.Cut(text, ":"); {
		case isName && (kind == "user" || kind == "project"):
			entry = usableName(kind, name)
		case !keystoneID.MatchString(text):
			fmt.Fprintf(a.err, "warning: --usable-by %s does not look like an id of Keystone; a name is user:NAME or project:NAME\n", output.Clean(text))
		}
		raw, err := json.Marshal(entry)
		if err != nil {
			return nil, err
		}
		entries = append(entries, raw)
	}
	return &entries, nil
}

// usableName is a name, with its domain before a slash.
func usableName(kind, name string) (n api.UsableName) {
	if in, rest, found := strings.Cut(name, "/"); found {
		name = rest
		if in != "" {
			n.Domain = &in
		}
	}
	if kind == "user" {
		n.User = &name
	} else {
		n.Project = &name
	}
	return n
}
