package cli

import (
	"context"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
)

// completeOrder offers what there is to launch with, by its names.
func (a *app) completeOrder(cmd *cobra.Command) {
	for flag, kind := range map[string]string{
		"flavor": "flavors", "image": "images", "network": "networks", "key-name": "keypairs", "security-group": "security_groups", "zone": "zones",
	} {
		_ = cmd.RegisterFlagCompletionFunc(flag, a.complete(func(ctx context.Context) ([]string, error) { return a.resourceNames(ctx, kind) }))
	}
	fixed := map[string][]string{
		"on-failure": {"keep", "rollback"}, "id": nil, "count": nil, "min-vcpus": nil, "min-ram-mb": nil, "min-disk-gb": nil, "metadata": nil,
		"callback": nil, "timeout": nil,
	}
	for flag, values := range fixed {
		_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	}
	_ = cmd.RegisterFlagCompletionFunc("connection", a.complete(a.usableConnections))
}

// resourceNames are what there is of one kind, with what tells one from another.
func (a *app) resourceNames(ctx context.Context, kind string) ([]string, error) {
	client, err := a.api(ctx)
	if err != nil {
		return nil, err
	}
	found, err := api.One[api.Resources](ctx, client, "/v1/resources", url.Values{"kinds": {kind}})
	if err != nil {
		return nil, err
	}
	r := found.Value
	var names []string
	for _, f := range value(r.Flavors) {
		names = append(names, f.Name+"\t"+count(f.Vcpus, "vCPU")+", "+size(f.RAMMb)+" of memory, "+size(f.DiskGb<<10)+" of disk")
	}
	for _, i := range value(r.Images) {
		if i.Status == "active" {
			names = append(names, i.Name+"\t"+i.DiskFormat+", "+string(i.Visibility))
		}
	}
	for _, n := range value(r.Networks) {
		if !n.External {
			names = append(names, n.Name+"\t"+cidrs(n))
		}
	}
	for _, k := range value(r.Keypairs) {
		names = append(names, k.Name+"\t"+k.Fingerprint)
	}
	for _, g := range value(r.SecurityGroups) {
		names = append(names, g.Name+"\t"+g.Description)
	}
	for _, z := range value(r.Zones) {
		if z.Available {
			names = append(names, z.Name)
		}
	}
	return names, nil
}

func cidrs(n api.Network) string {
	texts := make([]string, len(n.Subnets))
	for i, s := range n.Subnets {
		texts[i] = s.Cidr
	}
	return strings.Join(texts, ", ")
}

// size is memory or disk in words.
func size(mib int) string {
	if mib%1024 == 0 {
		return strconv.Itoa(mib/1024) + " GiB"
	}
	return strconv.Itoa(mib) + " MiB"
}
