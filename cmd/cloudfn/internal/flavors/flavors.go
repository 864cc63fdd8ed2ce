// Package flavors holds the commands for flavors: named templates of managed resources.
package flavors

import (
	"maps"
	"net/http"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/documents"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/managed"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// Noun is that of flavors.
var Noun = cli.Noun[api.ResourceFlavor]{
	Path: "/v1/flavors", Key: "flavors", Arg: "FLAVOR",
	Offer: func(f api.ResourceFlavor) string { return f.Name + "\t" + f.Kind },
	Below: func(a *cli.App, f api.Item[api.ResourceFlavor]) error { return managed.PrintSpec(a, f.Raw) },
	Table: output.Table[api.ResourceFlavor]{
		Columns: []string{"NAME", "KIND", "PROVIDER", "DESCRIPTION"},
		Details: []string{"CREATED:created_at", "UPDATED:updated_at"},
		Name:    func(f api.ResourceFlavor) string { return f.Name },
	},
}

// Command holds the commands for flavors.
func Command(a *cli.App) *cobra.Command {
	list := Noun.List(a, "List the project's flavors of managed resources", "listFlavors")
	cli.LimitFlag(list, 0)
	return cli.Group("flavors", "Keep templates of managed resources", list,
		Noun.Show(a, "Show a flavor and its spec", "getFlavor"), create(a), update(a),
		Noun.Delete(a, "Delete flavors that no resource is declared with", "deleteFlavor"))
}

// fields are those that flags set, besides the spec.
var fields = []string{"kind", "provider", "description"}

func flags(cmd *cobra.Command) {
	var kinds []string
	for _, kind := range domain.Kinds() {
		kinds = append(kinds, string(kind))
	}
	cmd.Flags().String("kind", "", "the kind of the resources that it is for")
	cmd.Flags().String("provider", "", "who makes them (default the one of the kind)")
	cmd.Flags().String("description", "", "what it is for")
	cli.Choices(cmd, "kind", kinds...)
	managed.SpecFlags(cmd)
}

func create(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use: "create NAME --kind KIND [--set FIELD=VALUE]...", Short: "Create a flavor", Args: cobra.ExactArgs(1),
		Example:     "  cloudfn flavors create small --kind VirtualMachine --set flavor=m1.tiny --set image=cirros",
		Annotations: cli.Calls("createFlavor"), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			body := cli.Body(cmd.Flags(), fields...)
			spec, err := managed.SpecOf(a, cmd, nil)
			if err != nil {
				return err
			}
			body["name"], body["spec"] = args[0], spec
			return Noun.Send(cmd.Context(), a, http.MethodPost, Noun.Path, body)
		},
	}
	flags(cmd)
	_ = cmd.MarkFlagRequired("kind")
	return cmd
}

func update(a *cli.App) *cobra.Command {
	cmd := Noun.One(a, "update", "Change a flavor", "getFlavor", func(cmd *cobra.Command, name string) error {
		found, err := Noun.Get(cmd.Context(), a, name, nil)
		if err != nil {
			return err
		}
		d, err := documents.New(documents.FlavorKind, found.Raw)
		if err != nil {
			return err
		}
		body := d.Request()
		maps.Copy(body, cli.Body(cmd.Flags(), fields...))
		if body["spec"], err = managed.SpecOf(a, cmd, d.Spec()); err != nil {
			return err
		}
		changed, err := api.SendIfMatch[api.ResourceFlavor](cmd.Context(), a.API(), http.MethodPut, Noun.URL(name),
			found.ETag, body)
		if err != nil {
			return err
		}
		return Noun.Print(a, changed)
	})
	cmd.Annotations = cli.Calls("getFlavor", "putFlavor")
	cmd.Long = `Change a flavor. Without a flag a field stays as it is; an empty value removes it. What was declared
with the flavor stays as it is until it is declared again.`
	cmd.Example = "  cloudfn flavors update small --set flavor=m1.small"
	flags(cmd)
	return cmd
}
