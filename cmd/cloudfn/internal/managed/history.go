package managed

import (
	"cmp"
	"net/http"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
)

var revisionTable = output.Table[api.ManagedRevision]{
	Columns: []string{"REVISION", "CREATED:created_at", "REPEATS:rolled_back", "FLAVOR", "USER", "USER_ID+:user_id"},
	Name:    func(r api.ManagedRevision) string { return strconv.Itoa(r.Revision) },
	Texts: map[string]func(api.ManagedRevision) string{
		"USER": func(r api.ManagedRevision) string { return cmp.Or(cli.Value(r.UserName), r.UserID) },
	},
}

// kept is what the list of revisions answers: it has no pages.
type kept struct {
	Revisions []api.Item[api.ManagedRevision] `json:"revisions"`
}

func revisions(a *cli.App) *cobra.Command {
	cmd := one(a, "revisions", "[REVISION]", "List the revisions of a managed resource, or show one",
		"listManagedRevisions getManagedRevision", 1,
		func(cmd *cobra.Command, r Reference, rest []string) error {
			if len(rest) == 0 {
				var found kept
				if err := a.API().Do(cmd.Context(), http.MethodGet, r.URL("revisions"), nil, &found); err != nil {
					return err
				}
				return output.List(&a.Print, found.Revisions, revisionTable)
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
		Use: "delete (KIND NAME... | KIND/NAME...)", Aliases: []string{"rm"},
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
				return r.Near(cmd.Context(), a, err)
			})
			if !wait.IsOn || len(targets) == 0 {
				return failure
			}
			if err := Await(cmd.Context(), a, wait.Limit, targets); err != nil {
				return err
			}
			return failure
		},
	}
	cmd.Flags().BoolVar(&isOrphan, "orphan", false, "their objects stay in OpenStack, and are no longer managed")
	wait.Flags(cmd, "they are gone")
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
