package testkit

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/flavors"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/tags"
)

// actions are the bodies of Nova's server actions.
var actions = map[string]any{
	"start": object{"os-start": nil}, "stop": object{"os-stop": nil}, "shelve": object{"shelve": nil},
	"unshelve": object{"unshelve": nil}, "snapshot": object{"createImage": object{"name": "snapshot"}},
	"pause": object{"pause": nil}, "suspend": object{"suspend": nil}, "lock": object{"lock": nil},
	"rescue": object{"rescue": object{}}, "break": object{"os-resetState": object{"state": "error"}},
	"reboot": object{"reboot": object{"type": "SOFT"}}, "hard": object{"reboot": object{"type": "HARD"}},
}

type object map[string]any

// Act sends an action to Nova as the member, or "break" (put the server into ERROR) as an admin, and returns the status
// of the answer: 202 for every success.
func (p *Project) Act(t testing.TB, serverID, action string) int {
	t.Helper()
	client := p.Login(t)
	if action == "break" {
		client = Login(t, "admin")
	}
	nova, body := Compute(t, client), actions[action]
	if action == "resize" {
		body = object{"resize": object{"flavorRef": largerFlavor(t, nova)}}
	}
	_, err := nova.Post(context.Background(), nova.ServiceURL("servers", serverID, "action"), body, nil,
		&gophercloud.RequestOpts{OkCodes: []int{http.StatusOK, http.StatusAccepted}})
	if rejected, ok := errors.AsType[gophercloud.ErrUnexpectedResponseCode](err); ok {
		return rejected.Actual
	}
	check(t, err)
	return http.StatusAccepted
}

// largerFlavor returns the smallest flavor with more memory than the smallest of all.
func largerFlavor(t testing.TB, nova *gophercloud.ServiceClient) string {
	t.Helper()
	list := flavors.ListDetail(nova, flavors.ListOpts{SortKey: "memory_mb", SortDir: "asc"})
	found := all(t, list, flavors.ExtractFlavors)
	for _, f := range found {
		if f.RAM > found[0].RAM {
			return f.ID
		}
	}
	t.Fatal("all flavors have the same memory")
	return ""
}

// createOpts returns the request for servers of the smallest flavor.
func createOpts(t testing.TB, name string) servers.CreateOpts {
	t.Helper()
	f := Sandbox(t)
	return servers.CreateOpts{Name: name, FlavorRef: f.FlavorID, ImageRef: f.ImageID, Networks: "none"}
}

// withoutNetwork is Nova's first version of networks "none". A port is half of what a server costs the sandbox.
const withoutNetwork = "2.37"

// Create creates a server without a network, and does not wait for it.
func (p *Project) Create(t testing.TB, name string, tags ...string) (id string) {
	t.Helper()
	opts, nova := createOpts(t, name), Compute(t, p.Login(t))
	opts.Tags, nova.Microversion = tags, withoutNetwork
	if len(tags) > 0 {
		nova.Microversion = "2.52"
	}
	return must(servers.Create(context.Background(), nova, opts, nil).Extract())(t).ID
}

// Untag removes all tags of a server.
func (p *Project) Untag(t testing.TB, serverID string) {
	t.Helper()
	nova := Compute(t, p.Login(t))
	nova.Microversion = "2.26"
	check(t, tags.DeleteAll(context.Background(), nova, serverID).ExtractErr())
}

// Tags returns the tags of a server.
func (p *Project) Tags(t testing.TB, serverID string) []string {
	t.Helper()
	nova := Compute(t, p.Login(t))
	nova.Microversion = "2.26"
	return must(tags.List(context.Background(), nova, serverID).Extract())(t)
}

// Tag adds a tag to a server.
func (p *Project) Tag(t testing.TB, serverID, tag string) {
	t.Helper()
	nova := Compute(t, p.Login(t))
	nova.Microversion = "2.26"
	check(t, tags.Add(context.Background(), nova, serverID, tag).ExtractErr())
}
