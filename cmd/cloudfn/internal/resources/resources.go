// Package resources holds the command that lists what a project can launch servers with.
package resources

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
)

const path = "/v1/resources"

// kinds are those that every launch needs, and then the others.
var kinds = []string{"flavors", "images", "networks", "keypairs", "security_groups", "zones", "quota"}

// Command lists them.
func Command(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "resources [KIND...]",
		Short: "List what there is to launch servers with",
		Long: "List what there is to launch servers with: " + strings.Join(kinds, ", ") +
			". Without a kind, those that every launch needs.",
		Example: "  cloudfn resources\n  cloudfn resources quota zones\n  cloudfn resources flavors -o name\n" +
			"  cloudfn resources --connection 019b7c5e-1f20-7a31-b5d4-0c7e2f9a6b13",
		Annotations: cli.Calls("listResources"),
		Args:        cobra.OnlyValidArgs, ValidArgs: kinds,
		RunE: func(cmd *cobra.Command, wanted []string) error {
			if len(wanted) == 0 {
				wanted = kinds[:3]
			}
			query := cli.Query(cmd.Flags(), "connection:connection_id")
			query.Set("kinds", strings.Join(wanted, ","))
			found, err := api.Get[api.Resources](cmd.Context(), a.API(), path, query)
			if err != nil {
				return err
			}
			noteAge(a, found.Value)
			if err := show(a, wanted, found); err != nil {
				return err
			}
			return failures(found.Value)
		},
	}
	a.ConnectionFlag(cmd, "what can be ordered through this connection: flavors, images, networks, quota")
	return cmd
}

// noteAge says how old an answer about a connection is, and which of its lists are cut.
func noteAge(a *cli.App, r api.Resources) {
	if r.AsOf == nil || r.AgeSeconds == nil {
		return
	}
	age := time.Duration(*r.AgeSeconds) * time.Second
	a.Notef("Read through the connection %s ago, at %s.", age, output.Time(*r.AsOf))
	if r.Truncated != nil {
		var cut []string
		for _, kind := range *r.Truncated {
			cut = append(cut, string(kind))
		}
		a.Notef("There is more than is listed of: %s.", strings.Join(cut, ", "))
	}
}

func show(a *cli.App, wanted []string, found api.Item[api.Resources]) error {
	if a.Print.IsData() {
		return output.One(&a.Print, found, output.Table[api.Resources]{})
	}
	for i, kind := range wanted {
		if len(wanted) > 1 && a.Print.Format != "name" {
			if i > 0 {
				fmt.Fprintln(a.Out)
			}
			fmt.Fprintln(a.Out, output.Bold(a.Print.Color, strings.ReplaceAll(kind, "_", " ")))
		}
		if err := showKind(&a.Print, kind, found.Value); err != nil {
			return err
		}
	}
	return nil
}

// showKind prints one kind, unless it failed.
func showKind(p *output.Printer, kind string, r api.Resources) error {
	switch kind {
	case "flavors":
		return list(p, r.Flavors, flavorColumns)
	case "images":
		return list(p, r.Images, imageColumns)
	case "networks":
		return list(p, r.Networks, networkColumns)
	case "keypairs":
		return list(p, r.Keypairs, keypairColumns)
	case "security_groups":
		return list(p, r.SecurityGroups, groupColumns)
	case "zones":
		return list(p, r.Zones, zoneColumns)
	}
	q := r.Quota
	if q == nil {
		return nil
	}
	return list(p, &[]quota{{"instances", q.Instances}, {"vcpus", q.Vcpus}, {"ram_mb", q.RAMMb}}, quotaColumns)
}

// list prints a list, unless it is nil. The column NAME is each thing's name.
func list[T any](p *output.Printer, all *[]T, columns []output.Column[T]) error {
	if all == nil {
		return nil
	}
	isName := func(c output.Column[T]) bool { return c.Title == "NAME" }
	name := columns[slices.IndexFunc(columns, isName)]
	return output.Values(p, *all, output.Table[T]{Columns: columns, Name: name.Of})
}

// failures says which kinds could not be listed.
func failures(r api.Resources) error {
	if r.Errors == nil {
		return nil
	}
	var texts []string
	for _, kind := range slices.Sorted(maps.Keys(*r.Errors)) {
		texts = append(texts, kind+": "+(*r.Errors)[kind].Detail)
	}
	return exit.Failedf("not all could be listed: %s", strings.Join(texts, "; "))
}

var flavorColumns = []output.Column[api.Flavor]{
	{Title: "NAME"}, {Title: "VCPUS"}, {Title: "RAM_MB"}, {Title: "DISK_GB"}, {Title: "ID"},
}

var imageColumns = []output.Column[api.Image]{
	{Title: "NAME"}, {Title: "STATUS", IsState: true}, {Title: "MIN_DISK_GB", IsWide: true},
	{Title: "MIN_RAM_MB", IsWide: true}, {Title: "VISIBILITY", IsWide: true},
	{Title: "FORMAT", Path: "disk_format", IsWide: true}, {Title: "ID"},
}

var networkColumns = []output.Column[api.Network]{
	{Title: "NAME"}, {Title: "STATUS", IsState: true}, {Title: "SUBNETS", Text: subnets},
	{Title: "EXTERNAL", IsWide: true}, {Title: "ID"},
}

func subnets(n api.Network) string {
	var ranges []string
	for _, s := range n.Subnets {
		ranges = append(ranges, s.Cidr)
	}
	return strings.Join(ranges, ", ")
}

var keypairColumns = []output.Column[api.KeyPair]{{Title: "NAME"}, {Title: "FINGERPRINT"}}

var groupColumns = []output.Column[api.SecurityGroup]{{Title: "NAME"}, {Title: "DESCRIPTION"}, {Title: "ID"}}

var zoneColumns = []output.Column[api.Zone]{
	{Title: "NAME"}, {Title: "AVAILABLE", IsState: true, Text: func(z api.Zone) string {
		if z.Available {
			return "yes"
		}
		return "no"
	}},
}

// quota is one line of the quota.
type quota struct {
	Name string `json:"name"`
	api.QuotaItem
}

var quotaColumns = []output.Column[quota]{
	{Title: "NAME"}, {Title: "USED"}, {Title: "MAX", Text: func(q quota) string {
		return cmp.Or(map[int]string{-1: "unlimited"}[q.Max], strconv.Itoa(q.Max))
	}},
}
