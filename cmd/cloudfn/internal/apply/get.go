package apply

import (
	"cmp"
	"slices"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/documents"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/flavors"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/managed"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
)

// Get holds the commands that write files for apply. cli adds those that list and show other nouns.
func Get(a *cli.App) *cobra.Command {
	c := cli.Group("get", "List or show what there is; what is declared, in the form that apply takes",
		getManaged(a), getFlavors(a))
	c.Example = `  cloudfn get servers
  cloudfn get server web -o yaml
  cloudfn get managed -o yaml > servers.yaml`
	return c
}

func getManaged(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use: "managed [KIND [NAME]]", Short: "Get managed resources", Args: cobra.MaximumNArgs(2),
		Long: `Get managed resources. With -o yaml or -o json they come as documents that apply takes, without their
status and without their secrets; a declaration without them keeps those that are there.`,
		Example: `  cloudfn get managed -o yaml > servers.yaml
  cloudfn get managed VirtualMachineDeployment web -o yaml`,
		Annotations:       cli.Calls("listManaged", "listManagedOfKind", "getManaged"),
		ValidArgsFunction: a.Complete(2, managed.Finder(a)),
		RunE: func(cmd *cobra.Command, args []string) error {
			found, err := resources(cmd, a, args)
			if err != nil {
				return err
			}
			return write(a, found, managed.Noun.Table, func(m api.Managed) string { return m.Kind })
		},
	}
	managed.FilterFlags(cmd)
	return cmd
}

// resources are those of a list, or the only one of a kind and a name.
func resources(cmd *cobra.Command, a *cli.App, args []string) ([]api.Item[api.Managed], error) {
	if len(args) < 2 {
		return managed.Find(cmd, a, args)
	}
	r, _, err := managed.ParseReference(args)
	if err != nil {
		return nil, err
	}
	found, err := api.Get[api.Managed](cmd.Context(), a.API(), r.URL(), nil)
	return []api.Item[api.Managed]{found}, managed.OfKind(r.Kind).Near(cmd.Context(), a, r.Name, err)
}

func getFlavors(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use: "flavors", Short: "Get flavors of managed resources", Args: cobra.NoArgs,
		Example:     "  cloudfn get flavors -o yaml > flavors.yaml",
		Annotations: cli.Calls("listFlavors"), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			found, err := flavors.Noun.Find(cmd.Context(), a, nil, 0)
			if err != nil {
				return err
			}
			return write(a, found, flavors.Noun.Table, func(api.ResourceFlavor) string { return documents.FlavorKind })
		},
	}
}

// write writes things as a table, or as documents in the order in which apply declares them.
func write[T any](a *cli.App, found []api.Item[T], t output.Table[T], kind func(T) string) (err error) {
	if !a.Print.IsData() {
		return output.List(&a.Print, found, t)
	}
	all := make([]documents.Document, len(found))
	for n, item := range found {
		if all[n], err = documents.New(kind(item.Value), item.Raw); err != nil {
			return err
		}
	}
	if len(a.Print.Columns) > 0 {
		return exit.Usagef("--columns requires a table: a document has all fields")
	}
	slices.SortStableFunc(all, func(a, b documents.Document) int { return cmp.Compare(a.Name, b.Name) })
	documents.Sort(all)
	if a.Print.Format == "yaml" {
		return documents.Write(a.Out, all)
	}
	return output.Data(&a.Print, all)
}
