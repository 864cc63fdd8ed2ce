package resources

import (
	"context"
	"net/url"
	"strconv"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
)

// Finder completes the names of one kind, with what tells one from another.
func Finder(a *cli.App, kind string) cli.Finder {
	return func(ctx context.Context, _ []string, _ string) ([]string, error) {
		r, err := get(ctx, a, kind)
		var names []string
		add := func(name, description string) { names = append(names, name+"\t"+description) }
		for _, f := range cli.Value(r.Flavors) {
			add(f.Name, output.Count(f.Vcpus, "vCPU")+", "+size(f.RAMMb)+" of memory, "+size(f.DiskGb<<10)+" of disk")
		}
		for _, i := range cli.Value(r.Images) {
			if i.Status == "active" {
				add(i.Name, i.DiskFormat+", "+string(i.Visibility))
			}
		}
		for _, n := range cli.Value(r.Networks) {
			if !n.External {
				add(n.Name, subnets(n))
			}
		}
		for _, k := range cli.Value(r.Keypairs) {
			add(k.Name, k.Fingerprint)
		}
		for _, g := range cli.Value(r.SecurityGroups) {
			add(g.Name, g.Description)
		}
		for _, z := range cli.Value(r.Zones) {
			if z.Available {
				names = append(names, z.Name)
			}
		}
		return names, err
	}
}

// ImageID gives the id of the only image with a name.
func ImageID(ctx context.Context, a *cli.App, name string) (string, error) {
	r, err := get(ctx, a, "images")
	if err != nil {
		return "", err
	}
	var all []cli.Named
	for _, i := range cli.Value(r.Images) {
		all = append(all, cli.Named{ID: i.ID, Name: i.Name})
	}
	return cli.Only("image", name, all)
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
