// Package resources holds the command that lists what a project can launch servers with.
package resources

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
	"github.com/cloudfn/cloudfn/shared/domain"
)

const path = "/v1/resources"

// kinds are those that every launch needs, and then the others.
var kinds = []string{"flavors", "images", "networks", "keypairs", "security_groups", "regions", "zones", "quota"}

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
			if format := a.Print.Format; len(wanted) > 1 && (format == "csv" || format == "value") {
				return exit.Usagef("-o %s takes one kind: %s -o %s", format, a.Name+" resources "+wanted[0], format)
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
		if len(wanted) > 1 && a.Print.IsTable() {
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
		return list(p, r.Flavors, nil, "NAME", "VCPUS", "RAM_MB", "DISK_GB", "ID")
	case "images":
		return list(p, r.Images, nil,
			"NAME", "STATUS*", "MIN_DISK_GB+", "MIN_RAM_MB+", "VISIBILITY+", "FORMAT+:disk_format", "ID")
	case "networks":
		texts := map[string]func(api.Network) string{"SUBNETS": subnets}
		return list(p, r.Networks, texts, "NAME", "STATUS*", "SUBNETS", "EXTERNAL+", "ID")
	case "keypairs":
		return list(p, r.Keypairs, nil, "NAME", "FINGERPRINT")
	case "security_groups":
		return list(p, r.SecurityGroups, nil, "NAME", "DESCRIPTION", "ID")
	case "regions":
		texts := map[string]func(api.Region) string{"SERVICES": services}
		return list(p, r.Regions, texts, "NAME", "DEFAULT", "SERVICES+")
	case "zones":
		texts := map[string]func(api.Zone) string{"AVAILABLE": availability}
		return list(p, r.Zones, texts, "NAME", "AVAILABLE*")
	}
	if r.Quota == nil {
		return nil
	}
	lines := []quota{{"instances", r.Quota.Instances}, {"vcpus", r.Quota.Vcpus}, {"ram_mb", r.Quota.RAMMb}}
	return list(p, &lines, map[string]func(quota) string{"MAX": quota.limit}, "NAME", "USED", "MAX")
}

// list prints a list, unless it is nil.
func list[T any](p *output.Printer, all *[]T, texts map[string]func(T) string, columns ...string) error {
	if all == nil {
		return nil
	}
	table := output.Table[T]{Columns: columns, Texts: texts}
	table.Name = func(value T) string { return table.Text("NAME", value) }
	return output.Values(p, *all, table)
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

func services(r api.Region) string { return strings.Join(r.Services, ",") }

func subnets(n api.Network) string {
	var ranges []string
	for _, s := range n.Subnets {
		ranges = append(ranges, s.Cidr)
	}
	return strings.Join(ranges, ", ")
}

func availability(z api.Zone) string {
	if z.Available {
		return "yes"
	}
	return "no"
}

// quota is one line of the quota.
type quota struct {
	Name string `json:"name"`
	api.QuotaItem
}

func (q quota) limit() string {
	if q.Max < 0 {
		return "unlimited"
	}
	return strconv.Itoa(q.Max)
}

// Finder completes the names of one kind, with what tells one from another.
func Finder(a *cli.App, kind string) cli.Finder {
	return a.Cached("resources "+kind, func(ctx context.Context) ([]string, error) {
		r, err := get(ctx, a, kind)
		if err == nil {
			err = failures(r)
		}
		var names []string
		add := func(name, description string) { names = append(names, name+"\t"+description) }
		for _, f := range domain.Deref(r.Flavors) {
			add(f.Name, output.Count(f.Vcpus, "vCPU")+", "+size(f.RAMMb)+" of memory, "+size(f.DiskGb<<10)+" of disk")
		}
		for _, i := range domain.Deref(r.Images) {
			if i.Status == "active" {
				add(i.Name, i.DiskFormat+", "+string(i.Visibility))
			}
		}
		for _, n := range domain.Deref(r.Networks) {
			if !n.External {
				add(n.Name, subnets(n))
			}
		}
		for _, k := range domain.Deref(r.Keypairs) {
			add(k.Name, k.Fingerprint)
		}
		for _, g := range domain.Deref(r.SecurityGroups) {
			add(g.Name, g.Description)
		}
		for _, z := range domain.Deref(r.Zones) {
			if z.Available {
				names = append(names, z.Name)
			}
		}
		return names, err
	})
}

// ImageID gives the id of an image that is given by its id or name.
func ImageID(ctx context.Context, a *cli.App, image string) (string, error) {
	return cli.One(find(ctx, a, "image", image))
}

// IDs gives the ids of things that are given by their ids or names. thing is image or network.
func IDs(ctx context.Context, a *cli.App, thing string, given []string) ([]string, error) {
	targets, err := find(ctx, a, thing, given...)
	ids := make([]string, len(targets))
	for n, target := range targets {
		ids[n], err = target.ID, cmp.Or(err, target.Err)
	}
	return ids, err
}

func find(ctx context.Context, a *cli.App, thing string, given ...string) ([]cli.Target, error) {
	type one struct{ id, name string }
	ref := func(o one) (id, name string, isOver bool) { return o.id, o.name, false }
	return cli.Resolve(given, thing, ref, func([]string) (all []one, err error) {
		r, err := get(ctx, a, thing+"s")
		for _, i := range domain.Deref(r.Images) {
			all = append(all, one{i.ID, i.Name})
		}
		for _, n := range domain.Deref(r.Networks) {
			all = append(all, one{n.ID, n.Name})
		}
		return all, err
	})
}

func get(ctx context.Context, a *cli.App, kind string) (api.Resources, error) {
	found, err := api.Get[api.Resources](ctx, a.API(), path, url.Values{"kinds": {kind}})
	return found.Value, err
}

// size is memory or disk in words; mib is in MiB.
func size(mib int) string {
	if mib%1024 == 0 {
		return strconv.Itoa(mib/1024) + " GiB"
	}
	return strconv.Itoa(mib) + " MiB"
}
