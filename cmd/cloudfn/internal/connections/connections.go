// Package connections holds the commands for delegations, and for requests for them.
package connections

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

var connections = cli.Noun[api.Connection]{
	Path: "/v1/connections", Key: "connections", Arg: "CONNECTION",
	Ref: func(c api.Connection) (id, name string, isOver bool) {
		return c.ID, c.Name, c.Status == api.ConnectionStatusDeleted
	},
	Offer: func(c api.Connection) string {
		return c.ID + "\t" + titled(c.Name, string(c.Kind)+", "+string(c.Status))
	},
	Note: func(a *cli.App, c api.Connection) {
		for _, warning := range cli.Value(c.Warnings) {
			a.Notef("warning: %s", warning)
		}
	},
	Table: output.Table[api.Connection]{
		Columns: []string{
			"ID", "NAME", "KIND+", "STATUS*", "ACTIONS", "USED", "ENDS:ends_at", "LAST_USED+:last_used_at",
			"PROJECT+:project_id", "LEASE+:lease_id",
		},
		Details: []string{
			"REASON", "REVOCATION", "TRUST_END:trust_expires_at", "SUSPENDED:suspended_at",
			"CREDENTIAL_END:credential_expires_at", "USED_VCPUS", "USED_RAM_MB", "ACTS_AS", "LIMITS", "USABLE_BY",
			"IDLE_TIMEOUT", "CLOUD:auth_url", "REGION", "CHECKED:checked_at", "CREATED:created_at",
		},
		Texts: map[string]func(api.Connection) string{
			"USED":        func(c api.Connection) string { return share(c.Used.Instances, c.Quota.Instances) },
			"USED_VCPUS":  func(c api.Connection) string { return share(c.Used.Vcpus, c.Quota.Vcpus) },
			"USED_RAM_MB": func(c api.Connection) string { return share(c.Used.RAMMb, c.Quota.RAMMb) },
			"ACTS_AS":     actsAs,
			"LIMITS":      func(c api.Connection) string { return limitsText(c.Limits) },
			"USABLE_BY":   usableBy,
		},
	},
}

// titled is a description, after a name if there is one.
func titled(name, description string) string {
	return strings.TrimPrefix(name+", ", ", ") + description
}

// share is how much of a quota is used; nil is no quota.
func share(n int, of *int) string {
	if of == nil {
		return strconv.Itoa(n)
	}
	return strconv.Itoa(n) + " of " + strconv.Itoa(*of)
}

func actsAs(c api.Connection) string {
	if c.ActsAs == nil {
		return ""
	}
	return fmt.Sprintf("%s in %s (%s)", c.ActsAs.UserName, c.ActsAs.ProjectName, strings.Join(c.ActsAs.Roles, ", "))
}

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

// usableBy lists the users and projects that may use a connection, with their known names.
func usableBy(c api.Connection) string {
	names := map[string]string{}
	for _, n := range cli.Value(c.UsableByNames) {
		name, domain := cli.Value(n.User)+cli.Value(n.Project), cli.Value(n.Domain)
		if domain != "" {
			domain = " of " + domain
		}
		names[n.ID] = " (" + name + domain + ")"
	}
	var all []string
	for _, id := range cli.Value(c.UsableBy) {
		all = append(all, id+names[id])
	}
	return strings.Join(all, ", ")
}

// Command holds the commands for connections.
func Command(a *cli.App) *cobra.Command {
	suspend := connections.Act(a, "suspend", "Stop all use of a connection until it is resumed", "suspendConnection")
	suspend.Long = `Stop all use of a connection until it is resumed. New requests through it are rejected. Pending
orders and actions go on after the resumption, unless the connection ends before. Servers stay as they are.`
	return cli.Group("connections", "Delegate, and list what is delegated",
		list(a), connections.Show(a, "Show a connection", "getConnection"), create(a), check(a), update(a),
		suspend, connections.Act(a, "resume", "Allow the use of a suspended connection again", "resumeConnection"),
		remove(a), accessRules(a), requestsCommand(a))
}

func list(a *cli.App) *cobra.Command {
	cmd := connections.List(a, "List what the project has delegated, or what you may act through", "listConnections",
		"usable", "status", "of")
	cmd.Example = "  cloudfn connections list --status lost,deleted"
	cmd.Flags().Bool("usable", false, "the active ones, of any project, that you may act through")
	cmd.Flags().StringSlice("of", nil, "only those of leases or declared resources: lease, managed (default neither)")
	cli.Choices(cmd, "of", domain.ConnectionsOf()...)
	cli.Statuses(cmd, domain.ConnectionStatuses(), " (default all but deleted)")
	return cmd
}

var ruleTable = output.Table[api.AccessRule]{
	Name:    func(r api.AccessRule) string { return string(r.Method) + " " + r.Path },
	Columns: []string{"SERVICE", "METHOD", "PATH"},
}

func accessRules(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use: "access-rules", Short: "List what an application credential must allow", Args: cobra.NoArgs,
		Example: `  cloudfn connections access-rules --actions allocate,stop -o json > rules.json
  openstack application credential create cloudfn --access-rules rules.json`,
		Annotations: cli.Calls("suggestAccessRules"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			path, query := connections.Path+"/access-rules", cli.Query(cmd.Flags(), "actions")
			found, err := api.Get[api.SuggestedAccessRules](cmd.Context(), a.API(), path, query)
			if err != nil {
				return err
			}
			return output.Values(&a.Print, found.Value.SuggestedAccessRules, ruleTable)
		},
	}
	actionsFlag(cmd, "what is to be permitted (default all): ")
	return cmd
}

func actionsFlag(cmd *cobra.Command, usage string) {
	cmd.Flags().StringSlice("actions", nil, usage+strings.Join(domain.Permissions(), ", "))
	flag := cmd.Flags().Lookup("actions")
	slice, _ := flag.Value.(pflag.SliceValue)
	flag.Value = actions{flag.Value, slice}
	cli.Choices(cmd, "actions", domain.Permissions()...)
}

// actions is a flag that takes permissions.
type actions struct {
	pflag.Value
	pflag.SliceValue
}

// permissions are those for commands that have another name.
var permissions = map[string]domain.Permission{
	"launch": domain.MayAllocate, "create": domain.MayAllocate, "delete": domain.MayDeallocate,
	"unshelve": domain.MayStart, "rebuild": domain.MayDeploy,
}

// Set implements pflag.Value.
func (a actions) Set(text string) error {
	for name := range strings.SplitSeq(text, ",") {
		known := domain.Permissions()
		if name = strings.TrimSpace(name); name == "" || slices.Contains(known, name) {
			continue
		}
		hint := ""
		if meant := cmp.Or(string(permissions[name]), apperr.Nearest(name, known)); meant != "" {
			hint = fmt.Sprintf("; did you mean %q?", meant)
		}
		return fmt.Errorf("%q must be one of %s%s", name, strings.Join(known, ", "), hint)
	}
	return a.Value.Set(text)
}

var pending = url.Values{"status": {string(domain.RequestPending)}}
