// Package managed holds the commands for managed resources: what is declared, and kept as it is declared.
package managed

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/documents"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// Noun is that of managed resources. One is named by its kind and its name.
var Noun = cli.Noun[api.Managed]{
	Path: "/v1/managed", Key: "managed", Below: below,
	Offer: func(m api.Managed) string { return m.Name + "\t" + string(m.Status) },
	Table: output.Table[api.Managed]{
		Columns: []string{
			"KIND", "NAME", "STATUS*", "READY", "REVISION", "REASON:status_reason", "NODE+", "LABELS+", "ID+",
		},
		Details: []string{
			"FLAVOR", "SCHEDULE", "REPAIR", "MAX_REVISIONS", "PROVIDER", "CREATED:created_at", "UPDATED:updated_at",
		},
		Name: func(m api.Managed) string { return m.Kind + "/" + m.Name },
		Texts: map[string]func(api.Managed) string{
			"READY": ready, "REVISION": revision, "NODE": nodes, "SCHEDULE": schedule,
			"LABELS": func(m api.Managed) string { return output.Pairs(m.Labels) },
		},
	},
}

// ready counts the members that are ready.
func ready(m api.Managed) string {
	n := 0
	for _, member := range m.Members {
		if string(member.Status) == string(domain.MemberReady) {
			n++
		}
	}
	return fmt.Sprintf("%d/%d", n, len(m.Members))
}

// revision is what is declared, and what is real while that is another one.
func revision(m api.Managed) string {
	text := strconv.Itoa(m.Revision)
	if m.ObservedRevision != m.Revision {
		text += fmt.Sprintf(" (now %d)", m.ObservedRevision)
	}
	return text
}

// nodes are the hosts that its members run on.
func nodes(m api.Managed) string {
	var all []string
	for _, member := range m.Members {
		if node := domain.Deref(member.Node); node != "" {
			all = append(all, node)
		}
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), ",")
}

// schedule says where it may run, such as: node labels rack=r1, zone nova.
func schedule(m api.Managed) string {
	var all []string
	for name, value := range map[string]string{
		"affinity":    string(domain.Deref(m.Schedule.Affinity)),
		"node labels": output.Pairs(domain.Deref(m.Schedule.Labels)),
		"region":      domain.Deref(m.Schedule.Region), "zone": domain.Deref(m.Schedule.Zone),
	} {
		if value != "" {
			all = append(all, name+" "+value)
		}
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// Command holds the commands for managed resources.
func Command(a *cli.App) *cobra.Command {
	return cli.Group("managed", "Declare resources that are kept as they are declared",
		list(a), show(a), put(a), update(a), scale(a), remove(a), revisions(a), diff(a), rollback(a),
		providers(a))
}

// Reference names a managed resource.
type Reference struct{ Kind, Name string }

// String implements fmt.Stringer.
func (r Reference) String() string { return r.Kind + "/" + r.Name }

// URL is its path, and that of what belongs to it.
func (r Reference) URL(more ...string) string {
	return Noun.URL(r.Kind, append([]string{r.Name}, more...)...)
}

// ParseKind reads a kind, whatever its letters' case.
func ParseKind(text string) (string, error) {
	var known []string
	for _, kind := range domain.Kinds() {
		if strings.EqualFold(text, string(kind)) {
			return string(kind), nil
		}
		known = append(known, string(kind))
	}
	return "", exit.Usagef("unknown kind %q; expected one of %s", text, strings.Join(known, ", "))
}

// ParseReference reads KIND NAME or KIND/NAME, and gives the other arguments.
func ParseReference(args []string) (r Reference, rest []string, err error) {
	kind, name, isOne := strings.Cut(args[0], "/")
	rest = args[1:]
	if !isOne {
		if len(rest) == 0 {
			return r, nil, exit.Usagef("the name is missing: give KIND NAME, or KIND/NAME")
		}
		name, rest = rest[0], rest[1:]
	}
	if r.Kind, err = ParseKind(kind); err != nil {
		return r, nil, err
	}
	r.Name = name
	return r, rest, nil
}

// one is a command for one resource. use names the arguments behind it: at most so many.
func one(
	a *cli.App, name, use, short, operations string, most int,
	run func(cmd *cobra.Command, r Reference, rest []string) error,
) *cobra.Command {
	return &cobra.Command{
		Use: strings.TrimRight(name+" KIND NAME "+use, " "), Short: short, Args: cobra.MinimumNArgs(1),
		Annotations: cli.Calls(strings.Fields(operations)...), ValidArgsFunction: a.Complete(2, Finder(a)),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, rest, err := ParseReference(args)
			if err != nil {
				return err
			}
			if len(rest) > most {
				return exit.Usagef("unexpected %q", rest[most])
			}
			return OfKind(r.Kind).Near(cmd.Context(), a, r.Name, run(cmd, r, rest))
		},
	}
}

// OfKind is the noun of a kind's resources.
func OfKind(kind string) cli.Noun[api.Managed] {
	n := Noun
	n.Path, n.Table.Name = Noun.URL(kind), func(m api.Managed) string { return m.Name }
	return n
}

// Finder completes kinds, and then the names of that kind.
func Finder(a *cli.App) cli.Finder {
	return func(ctx context.Context, args []string, begun string) ([]string, error) {
		if len(args) == 0 {
			var kinds []string
			for _, kind := range domain.Kinds() {
				kinds = append(kinds, string(kind))
			}
			return kinds, nil
		}
		kind, err := ParseKind(args[0])
		if err != nil {
			return nil, err
		}
		return OfKind(kind).Finder(a, nil, 0)(ctx, args, begun)
	}
}

func list(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use: "list [KIND]", Aliases: []string{"ls"}, Short: "List the project's managed resources",
		Example: "  cloudfn managed list Volume\n  cloudfn managed list --label app=web --status degraded,error",
		Args:    cobra.MaximumNArgs(1), Annotations: cli.Calls("listManaged", "listManagedOfKind"),
		ValidArgsFunction: a.Complete(1, Finder(a)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return cli.PrintList(cmd, a, func() ([]api.Item[api.Managed], output.Table[api.Managed], error) {
				found, err := Find(cmd, a, args)
				return found, Noun.Table, err
			})
		},
	}
	cli.WatchFlag(cmd)
	FilterFlags(cmd)
	return cmd
}

var statuses = []domain.ManagedStatus{
	domain.ManagedPending, domain.ManagedCreating, domain.ManagedUpdating, domain.ManagedReady, domain.ManagedDegraded,
	domain.ManagedError, domain.ManagedDeleting,
}

// FilterFlags add which resources of a list are wanted.
func FilterFlags(cmd *cobra.Command) {
	var all []string
	for _, status := range statuses {
		all = append(all, string(status))
	}
	cli.Statuses(cmd, all, "")
	flags := cmd.Flags()
	flags.StringSliceP("label", "l", nil, "only those with a label: KEY=VALUE, or without: KEY!=VALUE; may be repeated")
	flags.String("name", "", "only those whose name contains this")
	cli.LimitFlag(cmd, 0)
}

// Find lists the resources that a command's arguments (at most a kind) and flags name.
func Find(cmd *cobra.Command, a *cli.App, args []string) ([]api.Item[api.Managed], error) {
	n := Noun
	if len(args) > 0 {
		kind, err := ParseKind(args[0])
		if err != nil {
			return nil, err
		}
		n = OfKind(kind)
	}
	return n.Find(cmd.Context(), a, cli.Query(cmd.Flags(), "name", "status", "label"), cli.Limit(cmd))
}

func show(a *cli.App) *cobra.Command {
	return one(a, "show", "", "Show a managed resource, its conditions and its objects", "getManaged", 0,
		func(cmd *cobra.Command, r Reference, _ []string) error {
			return Noun.Send(cmd.Context(), a, http.MethodGet, r.URL(), nil)
		})
}

func providers(a *cli.App) *cobra.Command {
	cmd := cli.Noun[api.Provider]{
		Path: Noun.URL("providers"), Key: "providers", HasNoPages: true,
		Table: output.Table[api.Provider]{
			Columns: []string{"NAME", "AVAILABLE", "KINDS", "DRIVER", "REASON", "DESCRIPTION+"},
			Name:    func(p api.Provider) string { return p.Name },
			Texts: map[string]func(api.Provider) string{"AVAILABLE": func(p api.Provider) string {
				return map[bool]string{true: "yes", false: "no"}[p.Available]
			}},
		},
	}.List(a, "List who makes which kinds, and whether this cloud has them", "listProviders")
	cmd.Use, cmd.Aliases = "providers", nil
	return cmd
}

var conditionTable = output.Table[api.Condition]{
	Columns: []string{"CONDITION:type", "STATUS", "REASON", "SINCE:last_transition_at", "MESSAGE"},
	Name:    func(c api.Condition) string { return string(c.Type) },
}

var memberTable = output.Table[api.Member]{
	Columns: []string{"NAME", "STATUS*", "REVISION", "NODE", "REASON", "OBJECT+:object_id", "MEMBER+:id"},
}

var endpointTable = output.Table[api.Endpoint]{
	Columns: []string{"CONTAINER", "SERVER", "ADDRESS", "PORT", "PROTOCOL"},
	Name:    func(e api.Endpoint) string { return net.JoinHostPort(e.Address, strconv.Itoa(e.Port)) },
}

func driftTable(members []api.Member) output.Table[api.Drift] {
	return output.Table[api.Drift]{
		Columns: []string{"DRIFT:field", "DECLARED", "ACTUAL", "NAME", "MEMBER+"},
		Name:    func(d api.Drift) string { return d.Field },
		Texts: map[string]func(api.Drift) string{
			"DECLARED": func(d api.Drift) string { return short(d.Declared) },
			"ACTUAL":   func(d api.Drift) string { return short(d.Actual) },
			"NAME": func(d api.Drift) string {
				for _, m := range members {
					if m.ID == domain.Deref(d.Member) {
						return m.Name
					}
				}
				return ""
			},
		},
	}
}

// below prints the conditions of a resource, its objects, where its containers are reached, what others have changed,
// and its spec.
func below(a *cli.App, m api.Item[api.Managed]) error {
	return errors.Join(output.Below(&a.Print, m.Value.Conditions, conditionTable),
		output.Below(&a.Print, m.Value.Members, memberTable),
		output.Below(&a.Print, domain.Deref(m.Value.Endpoints), endpointTable),
		output.Below(&a.Print, m.Value.Drift, driftTable(m.Value.Members)), PrintSpec(a, m.Raw))
}

// PrintSpec prints what is declared, in YAML, below the facts of a table.
func PrintSpec(a *cli.App, raw json.RawMessage) error {
	d, err := documents.New("", raw)
	if err != nil || len(d.Spec()) == 0 || !a.Print.IsWhole() {
		return err
	}
	var text bytes.Buffer
	if err := documents.WriteValue(&text, map[string]any{"spec": d.Spec()}); err != nil {
		return err
	}
	fmt.Fprintf(a.Out, "\n%s", text.String())
	return nil
}

// Text is a value of a spec: a text as it is, any other value as JSON.
func Text(value any) string {
	if text, ok := value.(string); ok {
		return text
	}
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprint(value)
	}
	return string(text)
}
