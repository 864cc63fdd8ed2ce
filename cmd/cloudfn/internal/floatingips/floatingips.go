// Package floatingips holds the commands for floating IPs.
package floatingips

import (
	"context"
	"net/http"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// Noun is what the commands for floating IPs share.
var Noun = cli.Noun[api.FloatingIP]{
	Path: "/v1/floating-ips", Key: "floating_ips", Arg: "FLOATING_IP",
	Offer: func(f api.FloatingIP) string { return f.ID + "\t" + f.Address + " " + f.Description },
	Ref:   func(f api.FloatingIP) (id, name string, isOver bool) { return f.ID, f.Address, false },
	Table: output.Table[api.FloatingIP]{
		Name: func(f api.FloatingIP) string { return f.ID },
		Columns: []string{
			"ADDRESS", "STATUS*", "FIXED_ADDRESS", "SERVER:server_id", "DESCRIPTION+", "CREATED+:created_at", "ID",
		},
		Details: []string{"NETWORK:network_id", "PORT:port_id", "UPDATED:updated_at"},
		Texts: map[string]func(api.FloatingIP) string{
			"FIXED_ADDRESS": func(f api.FloatingIP) string { return domain.Deref(f.FixedAddress) },
			"SERVER":        func(f api.FloatingIP) string { return domain.Deref(f.ServerID) },
			"PORT":          func(f api.FloatingIP) string { return domain.Deref(f.PortID) },
		},
	},
}

// Command holds the commands for floating IPs.
func Command(a *cli.App) *cobra.Command {
	list := Noun.List(a, "List the project's floating IPs", "listFloatingIPs", "address", "attached")
	cli.LimitFlag(list, 0)
	list.Flags().String("address", "", "only the one with this address")
	list.Flags().String("attached", "", "true: only those that a port has; false: only free ones")
	cli.Choices(list, "attached", "true", "false")
	c := cli.Group("floating-ips", "List, show, create and delete floating IPs",
		list, Noun.Show(a, "Show a floating IP", "getFloatingIP"), create(a), remove(a))
	c.Long = `List, show, create and delete floating IPs. FLOATING_IP is an id or an address. "servers attach-ip" and
"servers detach-ip" attach them to servers.`
	return c
}

func create(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use: "create", Short: "Create a floating IP",
		Example: "  cloudfn floating-ips create --description web\n" +
			"  cloudfn floating-ips create --network public",
		Args: cobra.NoArgs, Annotations: cli.Calls("createFloatingIP"), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			body := cli.Body(cmd.Flags(), "network", "description", "address")
			return Noun.SendOnce(cmd.Context(), a, Noun.Path, body)
		},
	}
	flags := cmd.Flags()
	flags.String("network", "", "an external network, by id or name (default: the only one)")
	flags.String("description", "", "what it is for")
	flags.String("address", "", "an address of the network; most clouds let only admins choose it")
	return cmd
}

func remove(a *cli.App) *cobra.Command {
	var force bool
	cmd := Noun.Each(a, "delete", "Delete floating IPs: others may get their addresses then", "deleteFloatingIP",
		func(ctx context.Context, id string) error {
			path := Noun.URL(id)
			if force {
				path += "?force=true"
			}
			return a.API().Do(ctx, http.MethodDelete, path, nil, nil)
		})
	cmd.Flags().BoolVar(&force, "force", false, "delete those that are attached, too")
	return cmd
}
