// Package connections holds the commands for delegations, and for requests for them.
package connections

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/resources"
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
		for _, warning := range domain.Deref(c.Warnings) {
			a.Notef("warning: %s", warning)
		}
	},
	Table: output.Table[api.Connection]{
		Columns: []string{
			"ID", "NAME", "KIND+", "STATUS*", "ACTIONS+", "USED+", "ENDS:ends_at", "LAST_USED+:last_used_at",
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
	for _, n := range domain.Deref(c.UsableByNames) {
		name := domain.Deref(n.User) + domain.Deref(n.Project)
		if of := domain.Deref(n.Domain); of != "" {
			name += " of " + of
		}
		names[n.ID] = " (" + name + ")"
	}
	var all []string
	for _, id := range domain.Deref(c.UsableBy) {
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
	"unshelve": domain.MayStart, "unpause": domain.MayPause, "resume": domain.MaySuspend, "unlock": domain.MayLock,
	"unrescue": domain.MayRescue, "confirm-resize": domain.MayResize, "revert-resize": domain.MayResize,
}

// Set implements pflag.Value.
func (a actions) Set(text string) error {
	for name := range strings.SplitSeq(text, ",") {
		known := domain.Permissions()
		if name = strings.TrimSpace(name); name == "" || slices.Contains(known, name) {
			continue
		}
		suggestion := ""
		if meant := cmp.Or(string(permissions[name]), apperr.Nearest(name, known)); meant != "" {
			suggestion = fmt.Sprintf("; did you mean %q?", meant)
		}
		return fmt.Errorf("%q must be one of %s%s", name, strings.Join(known, ", "), suggestion)
	}
	return a.Value.Set(text)
}

var pending = url.Values{"status": {string(domain.RequestPending)}}

const expiresUsage = "until when: 24h, 30d or a time such as 2027-01-01T00:00:00Z"

func create(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use: "create --kind KIND --actions ACTIONS --expires WHEN", Short: "Delegate", Args: cobra.NoArgs,
		Long: `Delegate: let others act in your project, for some actions, up to a quota, until a time.

cloudfn makes a trust in Keystone with your own login. You make an application credential yourself; its secret is read
from a file, from stdin, or from the terminal, and never from the command line.`,
		Example: `  cloudfn connections create --kind trust --name "build machines" --actions allocate,start,stop \
    --quota-instances 3 --usable-by USER_ID --expires 24h
  cloudfn connections create --kind application_credential --id ID --secret-file secret \
    --actions allocate,deallocate --expires 2027-01-01T00:00:00Z
  cloudfn connections create --kind trust --actions allocate,start --flavor m1.small --image cirros --network private \
    --usable-by project:web --expires 7d`,
		Annotations: cli.Calls("createConnection"), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			body, err := delegation(a, cmd)
			if err != nil {
				return err
			}
			return connections.SendOnce(cmd.Context(), a, connections.Path, body)
		},
	}
	cmd.Flags().String("name", "", "a name, for you")
	actionsFlag(cmd, "what is permitted: ")
	a.Until(cmd, "expires", expiresUsage)
	delegationFlags(cmd, "")
	quotaFlags(cmd.Flags(), "default any number")
	cmd.Flags().StringSlice("usable-by", nil,
		"who may use it, besides you: ids of users and projects, or user:NAME, project:NAME, user:DOMAIN/NAME")
	limitFlags(a, cmd, "default any")
	for _, flag := range []string{"kind", "actions", "expires"} {
		_ = cmd.MarkFlagRequired(flag)
	}
	return cmd
}

func update(a *cli.App) *cobra.Command {
	cmd := connections.One(a, "update", "Change a connection behind its id", "changeConnection",
		func(cmd *cobra.Command, id string) error {
			body, err := request(a, cmd)
			if err != nil {
				return err
			}
			addUsableBy(a, cmd, body)
			if cmd.Flags().Changed("id") || cmd.Flags().Changed("secret-file") {
				if err := addSecret(a, cmd, body); err != nil {
					return err
				}
			}
			if len(body) == 0 {
				return exit.Usagef("nothing is to be changed: %s connections update -h lists flags", a.Name)
			}
			return connections.Send(cmd.Context(), a, http.MethodPatch, connections.URL(id), body)
		})
	cmd.Long = `Change a connection behind its id. Without a flag a field stays as it is. Pending orders and actions
continue with the new values.

A trust that is to last longer is replaced in Keystone with your own login, so only the user who delegated it can do
that. An application credential is replaced by its secret, which is read from a file, from stdin, or from the
terminal, and never from the command line.`
	cmd.Example = `  cloudfn connections update ID --expires 90d --quota-instances 5
  cloudfn connections update ID --quota-vcpus none --idle-timeout none
  cloudfn connections update ID --id CREDENTIAL_ID --secret-file secret`
	flags := cmd.Flags()
	flags.String("name", "", "a name, for you")
	a.Until(cmd, "expires", expiresUsage)
	flags.String("idle-timeout", "", "it also ends when it was not used for as long: 1h to 8784h, or none")
	quotaFlags(flags, "or none")
	actionsFlag(cmd, "all that is permitted: ")
	flags.StringSlice("usable-by", nil,
		`all that may act through it, besides you: ids, or user:NAME, project:NAME; "" is no one`)
	limitFlags(a, cmd, "none lifts the limit")
	flags.String("id", "", "of an application credential, with its secret: the id of another one")
	cli.SecretFileFlag(cmd, "of an application credential: the file with its secret (- for stdin)")
	cli.OrNone(flags, "idle-timeout", "quota-instances", "quota-vcpus", "quota-ram-mb",
		"quota-volumes", "quota-gigabytes", "quota-floating-ips", "image", "network", "flavor",
		"only-region")
	return cmd
}

func remove(a *cli.App) *cobra.Command {
	cmd := connections.Each(a, "delete", "End connections, and revoke what they delegate", "deleteConnection",
		func(ctx context.Context, id string) error { return end(ctx, a, id) })
	cmd.Annotations = cli.Calls("deleteConnection", "getConnection")
	cmd.Long = "End connections, and revoke what they delegate. Servers that were launched through them stay."
	return cmd
}

// end deletes a connection, and says what is left of it.
func end(ctx context.Context, a *cli.App, id string) error {
	found, err := api.Get[api.Connection](ctx, a.API(), connections.URL(id), nil)
	if err != nil {
		return err
	}
	if err := a.API().Do(ctx, http.MethodDelete, connections.URL(id), nil, nil); err != nil {
		return err
	}
	c := found.Value
	a.Notef("Connection %s has ended: no one acts through it any more.", c.ID)
	if n := c.Used.Instances; n > 0 {
		a.Notef("What ran through it stays in project %s, where %s servers list shows it: %s.",
			c.ProjectID, a.Name, output.Count(n, "server"))
	}
	if c.Kind == api.ApplicationCredential {
		a.Notef("The application credential stays in Keystone: delete it with openstack application credential delete.")
		return nil
	}
	ended, err := api.Get[api.Connection](ctx, a.API(), connections.URL(id), nil)
	if err != nil {
		return err
	}
	if domain.Deref(ended.Value.Revocation) == api.RevocationDone {
		a.Notef("The trust is deleted in Keystone.")
		return nil
	}
	a.Notef("Keystone has the trust until %s at the latest: %s connections show %s shows when it is deleted.",
		output.Time(domain.Deref(ended.Value.TrustExpiresAt)), a.Name, c.ID)
	return nil
}

var checkTable = output.Table[api.ConnectionCheck]{
	Columns: []string{"ID", "WORKS", "STATUS*", "REASON", "ROLES", "ENDS:ends_at", "CHECKED:checked_at"},
	Texts: map[string]func(api.ConnectionCheck) string{
		"WORKS": works,
		"ROLES": func(c api.ConnectionCheck) string { return strings.Join(c.Roles, ", ") },
	},
}

func works(c api.ConnectionCheck) string {
	switch {
	case c.Works == nil:
		return "unknown"
	case *c.Works:
		return "yes"
	}
	return "no"
}

func check(a *cli.App) *cobra.Command {
	cmd := connections.One(a, "check", "Check whether a connection still works", "checkConnection",
		func(cmd *cobra.Command, id string) error {
			path := connections.URL(id, "check")
			check, err := api.Send[api.ConnectionCheck](cmd.Context(), a.API(), http.MethodPost, path, nil)
			if err != nil {
				return err
			}
			err = output.One(&a.Print, check, checkTable)
			switch c := check.Value; {
			case err != nil || domain.Deref(c.Works):
				return err
			case c.Works == nil:
				return exit.Failedf("there was no answer in time: check again")
			default:
				return exit.Failedf("the connection does not work: it is %s", c.Status)
			}
		})
	cmd.Long = `Check whether Keystone still accepts what was delegated, and show with which roles and until when.

The exit code is 0 when the connection works; 1 when it does not, or when there was no answer in time; 6 when its
cloud does not answer.`
	return cmd
}

// fields are the fields of a connection, and of a request for one, that flags set.
var fields = []string{
	"project:project_id", "why", "kind", "name", "for", "actions", "expires:expires_at", "idle-timeout", "role:roles",
	"id", "auth-url", "region",
	"quota-instances:quota.instances", "quota-vcpus:quota.vcpus", "quota-ram-mb:quota.ram_mb",
	"quota-volumes:quota.volumes", "quota-gigabytes:quota.gigabytes",
	"quota-floating-ips:quota.floating_ips",
	"image:limits.images", "network:limits.networks", "flavor:limits.flavors", "only-region:limits.regions",
}

// quotaFlags and limitFlags add what a connection may be used for. byDefault is what holds without a flag.
func quotaFlags(flags *pflag.FlagSet, byDefault string) {
	flags.Int("quota-instances", 0, "how many servers at the same time ("+byDefault+")")
	flags.Int("quota-vcpus", 0, "how many vCPUs at the same time ("+byDefault+")")
	flags.Int("quota-ram-mb", 0, "how much memory at the same time ("+byDefault+")")
	flags.Int("quota-volumes", 0, "how many volumes of servers at the same time ("+byDefault+")")
	flags.Int("quota-gigabytes", 0, "how many GB of these volumes at the same time ("+byDefault+")")
	flags.Int("quota-floating-ips", 0, "how many floating IPs of servers at the same time ("+byDefault+")")
}

func limitFlags(a *cli.App, cmd *cobra.Command, byDefault string) {
	flags := cmd.Flags()
	flags.StringSlice("image", nil, "only these images, by id or name ("+byDefault+")")
	flags.StringSlice("network", nil, "only these networks, by id or name ("+byDefault+")")
	flags.StringSlice("flavor", nil, "only these flavors, by id or name ("+byDefault+")")
	flags.StringSlice("only-region", nil, "only these regions ("+byDefault+")")
	for _, flag := range []string{"image", "network", "flavor"} {
		a.CompleteFlag(cmd, flag, resources.Finder(a, flag+"s"))
	}
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

// request is what flags set of a connection, or of a request for one. The API takes images and networks by their ids.
func request(a *cli.App, cmd *cobra.Command) (map[string]any, error) {
	body := cli.Body(cmd.Flags(), fields...)
	limits, _ := body["limits"].(map[string]any)
	for _, thing := range []string{"image", "network"} {
		given, ok := limits[thing+"s"].([]string)
		isName := func(text string) bool { return !cli.IsID(text) }
		if !ok || !slices.ContainsFunc(given, isName) {
			continue
		}
		if body["auth_url"] != nil {
			return nil, exit.Usagef("--%s must be ids: they are those of the cloud of --auth-url", thing)
		}
		ids, err := resources.IDs(cmd.Context(), a, thing, given)
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", thing, err)
		}
		limits[thing+"s"] = ids
	}
	return body, nil
}

// delegation is the request that flags make. It has the secret of an application credential.
func delegation(a *cli.App, cmd *cobra.Command) (map[string]any, error) {
	body, err := request(a, cmd)
	if err != nil {
		return nil, err
	}
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
	cli.SetBy(cmd.Flags(), "", "usable-by")
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
