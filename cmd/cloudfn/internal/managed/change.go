package managed

import (
	"cmp"
	"context"
	"maps"
	"net/http"
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

// declareFlags add what a resource can be declared by.
func declareFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	SpecFlags(cmd)
	flags.String("flavor", "", "the flavor that its spec begins with")
	cli.Pairs(cmd, "label", "a label: KEY=VALUE; may be repeated")
	flags.String("region", "", "the region that it is in")
	flags.String("zone", "", "the availability zone that it is in")
	cli.Pairs(cmd, "node-label", "a label that its node must have: KEY=VALUE; may be repeated")
	flags.String("affinity", "", "of a deployment's servers: spread or pack")
	flags.String("repair", "", "what happens when others change it: auto (it is made as declared) or manual")
	flags.Int("max-revisions", 0, "how many revisions are kept")
	flags.Bool("dry-run", false, "only show what would be done")
	cli.Choices(cmd, "affinity", "spread", "pack")
	cli.Choices(cmd, "repair", string(domain.RepairManual), string(domain.RepairAuto))
}

// declared are the fields of a declaration that flags set, besides the spec.
var declared = []string{
	"flavor", "label:labels", "region:schedule.region", "zone:schedule.zone", "node-label:schedule.labels",
	"affinity:schedule.affinity", "repair", "max-revisions",
}

// override puts what the flags say into a declaration. An empty value removes a field.
func override(a *cli.App, cmd *cobra.Command, fields map[string]any) error {
	for field, value := range cli.Body(cmd.Flags(), declared...) {
		if inner, ok := value.(map[string]any); ok {
			value = merged(fields[field], inner)
		}
		fields[field] = value
	}
	spec, err := SpecOf(a, cmd, fields["spec"])
	fields["spec"] = spec
	return err
}

// SpecFlags add the fields of a spec.
func SpecFlags(cmd *cobra.Command) {
	cli.Pairs(cmd, "set", "a field of the spec: FIELD=VALUE, with VALUE in YAML; may be repeated")
	cli.Pairs(cmd, "set-file", "a field of the spec whose value is in a file: FIELD=FILE; may be repeated")
}

// SpecOf is a spec with the fields that the flags set.
func SpecOf(a *cli.App, cmd *cobra.Command, before any) (map[string]any, error) {
	changes := map[string]any{}
	cli.SetBy(cmd.Flags(), "", "set:spec", "set-file:spec")
	set, _ := cli.Body(cmd.Flags(), "set")["set"].(map[string]string)
	for field, text := range set {
		value, err := documents.Value(text)
		if err != nil {
			return nil, exit.Usagef("--set %s: %w", field, err)
		}
		changes[field] = value
	}
	fromFiles, _ := cli.Body(cmd.Flags(), "set-file")["set_file"].(map[string]string)
	for field, file := range fromFiles {
		text, err := a.ReadFile("--set-file "+field, file)
		if err != nil {
			return nil, err
		}
		if err := documents.SetFile(changes, field, text); err != nil {
			return nil, exit.Usagef("--set-file %s: %s %w", field, file, err)
		}
	}
	return merged(before, changes), nil
}

// merged is an object with other fields. An empty value removes a field; that of an absent field is kept, because a
// secret that is declared is not shown.
func merged(object any, changes map[string]any) map[string]any {
	all := map[string]any{}
	before, _ := object.(map[string]any)
	maps.Copy(all, before)
	for field, value := range changes {
		_, isThere := all[field]
		all[field] = value
		if isThere && (value == nil || value == "") {
			delete(all, field)
		}
	}
	return all
}

func put(a *cli.App) *cobra.Command {
	var wait cli.Wait
	var file string
	cmd := &cobra.Command{
		Use: "put (KIND NAME [--set FIELD=VALUE]... | --file FILE)", Short: "Declare a managed resource",
		Args: cobra.MaximumNArgs(2),
		Long: `Declare a resource: cloudfn makes it, and keeps it so. What is not given is not declared: managed update
changes single fields. Many resources are declared by apply.`,
		Example: `  cloudfn managed put Volume data --set size_gb=10 --label app=web
  cloudfn managed put VirtualMachineDeployment web --set count=3 --set flavor=m1.tiny --set image=cirros \
    --set 'networks=[private]' --set-file user_data=cloud-init.yaml --wait
  cloudfn managed put --file web.yaml --dry-run`,
		Annotations: cli.Calls("putManaged"), ValidArgsFunction: a.Complete(1, Finder(a)),
		RunE: func(cmd *cobra.Command, args []string) error {
			d, err := given(cmd, a, args, file)
			if err != nil {
				return err
			}
			return declare(cmd, a, d, api.Any, wait)
		},
	}
	declareFlags(cmd)
	cmd.Flags().StringVarP(&file, "file", "f", "", "a document that declares it, in YAML or JSON (- for stdin)")
	wait.Flags(cmd, "it is ready")
	return cmd
}

// given is the declaration of a file, or of arguments and flags.
func given(cmd *cobra.Command, a *cli.App, args []string, file string) (d documents.Document, err error) {
	if file == "" {
		if len(args) == 0 {
			return d, exit.Usagef("give KIND NAME, or the file that declares the resource by --file")
		}
		r, rest, err := ParseReference(args)
		if err != nil {
			return d, err
		}
		if len(rest) > 0 {
			return d, exit.Usagef("unexpected %q", rest[0])
		}
		d = documents.Document{Kind: r.Kind, Name: r.Name, Fields: map[string]any{}}
		return d, override(a, cmd, d.Fields)
	}
	all, err := documents.Read([]string{file}, a.In)
	if err != nil {
		return d, err
	}
	if len(all) > 1 || all[0].IsFlavor() {
		return d, exit.Usagef("--file: %s must declare one resource: %s apply takes flavors and several documents",
			file, a.Name)
	}
	if d = all[0]; len(args) > 0 && strings.Join(args, "/") != d.ID() {
		return d, exit.Usagef("--file: %s declares %s, and not %s", file, d.ID(), strings.Join(args, "/"))
	}
	return d, d.Source.Wrap(override(a, cmd, d.Fields))
}

func update(a *cli.App) *cobra.Command {
	var wait cli.Wait
	cmd := one(a, "update", "[--set FIELD=VALUE]...", "Change what is declared", "getManaged putManaged", 0,
		func(cmd *cobra.Command, r Reference, _ []string) error {
			found, err := api.Get[api.Managed](cmd.Context(), a.API(), r.URL(), nil)
			if err != nil {
				return err
			}
			d, err := documents.New(r.Kind, found.Raw)
			if err != nil {
				return err
			}
			if err := override(a, cmd, d.Fields); err != nil {
				return err
			}
			return declare(cmd, a, d, found.ETag, wait)
		})
	cmd.Long = `Change what is declared. Without a flag a field stays as it is; an empty value removes it. When someone
else changes the declaration at the same time, this one is refused.`
	cmd.Example = "  cloudfn managed update VirtualMachineDeployment web --set count=8 --wait"
	declareFlags(cmd)
	wait.Flags(cmd, "it is ready")
	return cmd
}

func scale(a *cli.App) *cobra.Command {
	var wait cli.Wait
	cmd := one(a, "scale", "COUNT", "Change how many servers a deployment has", "getManaged putManaged", 1,
		func(cmd *cobra.Command, r Reference, rest []string) error {
			if !domain.Kind(r.Kind).IsDeployment() {
				return exit.Usagef("only a %s or %s has a count, and not a %s", domain.KindDeployment,
					domain.KindPodDeployment, r.Kind)
			}
			if len(rest) == 0 {
				return exit.Usagef("the count is missing: give the number of servers behind the name")
			}
			count, err := strconv.Atoi(rest[0])
			if err != nil || count < 0 {
				return exit.Usagef("COUNT is %q: it must be 0 or more", rest[0])
			}
			found, err := api.Get[api.Managed](cmd.Context(), a.API(), r.URL(), nil)
			if err != nil {
				return err
			}
			d, err := documents.New(r.Kind, found.Raw)
			if err != nil {
				return err
			}
			d.Spec()["count"] = count
			return declare(cmd, a, d, found.ETag, wait)
		})
	cmd.Long = `Change the count of a deployment. All else that it declares stays. Servers that are not ready are
deleted first, then those of the highest numbers.`
	cmd.Example = "  cloudfn managed scale VirtualMachineDeployment web 8 --wait"
	wait.Flags(cmd, "it is ready")
	return cmd
}

// declare sends a declaration, or shows what it would change.
func declare(cmd *cobra.Command, a *cli.App, d documents.Document, etag string, wait cli.Wait) error {
	ctx := cmd.Context()
	if isDry, _ := cmd.Flags().GetBool("dry-run"); isDry {
		change, err := Plan(ctx, a, d)
		if err != nil {
			return d.Source.Wrap(err)
		}
		return PrintChanges(a, []Change{change})
	}
	m, err := Declare(ctx, a, d, etag)
	if err != nil {
		return d.Source.Wrap(err)
	}
	return printAfter(ctx, a, m, wait)
}

// printAfter prints a resource, after it is ready if the user wants that.
func printAfter(ctx context.Context, a *cli.App, m api.Item[api.Managed], wait cli.Wait) error {
	if wait.IsOn {
		r := Reference{m.Value.Kind, m.Value.Name}
		err := Await(ctx, a, wait, []*Target{{Reference: r, Revision: m.Value.Revision}})
		if err != nil {
			return err
		}
		if m, err = api.Get[api.Managed](ctx, a.API(), r.URL(), nil); err != nil {
			return err
		}
	}
	return Noun.Print(a, m)
}

// Declare sends the declaration of a resource, or of a flavor, which has no revision, for the version that was planned
// with.
func Declare(ctx context.Context, a *cli.App, d documents.Document, etag string) (api.Item[api.Managed], error) {
	return api.SendIfMatch[api.Managed](ctx, a.API(), http.MethodPut, path(d), etag, d.Request())
}

// Delete requests the deletion of a resource. One that is not found is done.
func Delete(ctx context.Context, a *cli.App, r Reference) error {
	err := a.API().Do(ctx, http.MethodDelete, r.URL(), nil, nil)
	if api.HasStatus(err, http.StatusNotFound) {
		return nil
	}
	return err
}

var revisionTable = output.Table[api.ManagedRevision]{
	Columns: []string{"REVISION", "CREATED:created_at", "REPEATS:rolled_back", "FLAVOR", "USER", "USER_ID+:user_id"},
	Name:    func(r api.ManagedRevision) string { return strconv.Itoa(r.Revision) },
	Texts: map[string]func(api.ManagedRevision) string{
		"USER": func(r api.ManagedRevision) string { return cmp.Or(domain.Deref(r.UserName), r.UserID) },
	},
}

func revisions(a *cli.App) *cobra.Command {
	cmd := one(a, "revisions", "[REVISION]", "List the revisions of a managed resource, or show one",
		"listManagedRevisions getManagedRevision", 1,
		func(cmd *cobra.Command, r Reference, rest []string) error {
			if len(rest) == 0 {
				return cli.Noun[api.ManagedRevision]{
					Path: r.URL("revisions"), Key: "revisions", Table: revisionTable, HasNoPages: true,
				}.PrintList(cmd, a, nil)
			}
			if _, err := number(rest[0]); err != nil {
				return err
			}
			found, err := api.Get[api.ManagedRevision](cmd.Context(), a.API(), r.URL("revisions", rest[0]), nil)
			if err != nil {
				return err
			}
			if err := output.One(&a.Print, found, revisionTable); err != nil {
				return err
			}
			return PrintSpec(a, found.Raw)
		})
	cmd.Example = "  cloudfn managed revisions VirtualMachineDeployment web\n" +
		"  cloudfn managed revisions VirtualMachineDeployment web 3 -o yaml"
	return cmd
}

// number reads the number of a revision.
func number(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0, exit.Usagef("the revision is %q: it must be a number from 1", text)
	}
	return n, nil
}

func rollback(a *cli.App) *cobra.Command {
	var wait cli.Wait
	cmd := one(a, "rollback", "REVISION", "Declare again what an older revision declared", "rollbackManaged", 1,
		func(cmd *cobra.Command, r Reference, rest []string) error {
			if len(rest) == 0 {
				return exit.Usagef("the revision is missing: %s managed revisions %s lists them", a.Name, r)
			}
			n, err := number(rest[0])
			if err != nil {
				return err
			}
			body := map[string]any{"revision": n}
			m, err := api.Send[api.Managed](cmd.Context(), a.API(), http.MethodPost, r.URL("rollback"), body)
			if err != nil {
				return err
			}
			return printAfter(cmd.Context(), a, m, wait)
		})
	cmd.Long = "Declare again what an older revision declared. That makes a new revision; the others stay as they are."
	cmd.Example = "  cloudfn managed rollback VirtualMachineDeployment web 3 --wait"
	wait.Flags(cmd, "it is ready")
	return cmd
}

func remove(a *cli.App) *cobra.Command {
	var wait cli.Wait
	var isOrphan bool
	cmd := &cobra.Command{
		Use:   "delete (KIND NAME... | KIND/NAME...)",
		Short: "Delete managed resources, with what they are made of", Args: cobra.MinimumNArgs(1),
		Long: `Delete managed resources, with their servers, volumes and other objects. What others still need waits for
them.`,
		Example: `  cloudfn managed delete Volume data logs --wait
  cloudfn managed list --label app=web -o name | xargs cloudfn managed delete`,
		Annotations: cli.Calls("deleteManaged"), ValidArgsFunction: a.Complete(0, Finder(a)),
		RunE: func(cmd *cobra.Command, args []string) error {
			all, err := references(args)
			if err != nil {
				return err
			}
			var targets []*Target
			failure := a.Each(names(all), func(name string) error {
				kind, name, _ := strings.Cut(name, "/")
				r := Reference{kind, name}
				path := r.URL()
				if isOrphan {
					path += "?orphan=true"
				}
				err := a.API().Do(cmd.Context(), http.MethodDelete, path, nil, nil)
				if err == nil {
					targets = append(targets, &Target{Reference: r})
				}
				return OfKind(r.Kind).Near(cmd.Context(), a, r.Name, err)
			})
			if !wait.IsOn || len(targets) == 0 {
				return failure
			}
			if err := Await(cmd.Context(), a, wait, targets); err != nil {
				return err
			}
			return failure
		},
	}
	cmd.Flags().BoolVar(&isOrphan, "orphan", false, "their objects stay in OpenStack, and are no longer managed")
	wait.Flags(cmd, "they are deleted")
	return cmd
}

// references reads KIND NAME..., or KIND/NAME....
func references(args []string) (all []Reference, err error) {
	if strings.Contains(args[0], "/") {
		for _, arg := range args {
			r, _, err := ParseReference([]string{arg})
			if err != nil {
				return nil, err
			}
			all = append(all, r)
		}
		return all, nil
	}
	first, rest, err := ParseReference(args)
	if err != nil {
		return nil, err
	}
	all = []Reference{first}
	for _, name := range rest {
		all = append(all, Reference{first.Kind, name})
	}
	return all, nil
}

func names(all []Reference) []string {
	texts := make([]string, len(all))
	for n, r := range all {
		texts[n] = r.String()
	}
	return texts
}
