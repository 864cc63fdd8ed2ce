package testkit

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/flavors"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"
)

// tellings are the actions that Tell knows, of Nova's own API.
var tellings = map[string]func(ctx context.Context, nova *gophercloud.ServiceClient, id string) error{
	"start": func(ctx context.Context, nova *gophercloud.ServiceClient, id string) error {
		return servers.Start(ctx, nova, id).ExtractErr()
	},
	"stop": func(ctx context.Context, nova *gophercloud.ServiceClient, id string) error {
		return servers.Stop(ctx, nova, id).ExtractErr()
	},
	"reboot": func(ctx context.Context, nova *gophercloud.ServiceClient, id string) error {
		return servers.Reboot(ctx, nova, id, servers.RebootOpts{Type: servers.SoftReboot}).ExtractErr()
	},
	"hard": func(ctx context.Context, nova *gophercloud.ServiceClient, id string) error {
		return servers.Reboot(ctx, nova, id, servers.RebootOpts{Type: servers.HardReboot}).ExtractErr()
	},
	"shelve": func(ctx context.Context, nova *gophercloud.ServiceClient, id string) error {
		return servers.Shelve(ctx, nova, id).ExtractErr()
	},
	"pause": func(ctx context.Context, nova *gophercloud.ServiceClient, id string) error {
		return servers.Pause(ctx, nova, id).ExtractErr()
	},
	"suspend": func(ctx context.Context, nova *gophercloud.ServiceClient, id string) error {
		return servers.Suspend(ctx, nova, id).ExtractErr()
	},
	"rescue": func(ctx context.Context, nova *gophercloud.ServiceClient, id string) error {
		return servers.Rescue(ctx, nova, id, servers.RescueOpts{}).Err
	},
	"lock": func(ctx context.Context, nova *gophercloud.ServiceClient, id string) error {
		return servers.Lock(ctx, nova, id).ExtractErr()
	},
	"resize": resize,
}

// Tell has Nova itself do something to a server, and gives the status of its answer. "hard" is a hard reboot; "break" is done
// by an admin, who says that the server is in ERROR.
func (p *Project) Tell(t testing.TB, serverID, action string) int {
	t.Helper()
	var err error
	if action == "break" {
		err = servers.ResetState(context.Background(), Compute(t, Login(t, "admin")), serverID, servers.StateError).ExtractErr()
	} else {
		err = tellings[action](context.Background(), Compute(t, p.Login(t)), serverID)
	}
	if refused, ok := errors.AsType[gophercloud.ErrUnexpectedResponseCode](err); ok {
		return refused.Actual
	}
	if err != nil {
		t.Fatal(err)
	}
	return http.StatusAccepted
}

// resize gives a server the smallest flavor that is larger than the smallest.
func resize(ctx context.Context, nova *gophercloud.ServiceClient, id string) error {
	pages, err := flavors.ListDetail(nova, flavors.ListOpts{SortKey: "memory_mb", SortDir: "asc"}).AllPages(ctx)
	if err != nil {
		return err
	}
	found, err := flavors.ExtractFlavors(pages)
	if err != nil {
		return err
	}
	for _, f := range found {
		if f.RAM > found[0].RAM {
			return servers.Resize(ctx, nova, id, servers.ResizeOpts{FlavorRef: f.ID}).ExtractErr()
		}
	}
	return errors.New("there is one size of flavor only")
}

// Create asks Nova for a server, and does not wait for it.
func (p *Project) Create(t testing.TB, name string, tags ...string) (id string) {
	t.Helper()
	f := Sandbox(t)
	opts := servers.CreateOpts{Name: name, FlavorRef: f.FlavorID, ImageRef: f.ImageID, Networks: []servers.Network{{UUID: f.NetworkID}}, Tags: tags}
	nova := Compute(t, p.Login(t))
	if len(tags) > 0 {
		nova.Microversion = "2.52"
	}
	made, err := servers.Create(context.Background(), nova, opts, nil).Extract()
	if err != nil {
		t.Fatal(err)
	}
	return made.ID
}
