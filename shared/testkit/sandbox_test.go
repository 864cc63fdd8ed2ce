package testkit

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack"
	"github.com/gophercloud/gophercloud/v2/openstack/blockstorage/v3/volumes"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/volumeattach"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/roles"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/tokens"
	"github.com/gophercloud/gophercloud/v2/openstack/keymanager/v1/secrets"
	"github.com/gophercloud/gophercloud/v2/openstack/loadbalancer/v2/listeners"
	"github.com/gophercloud/gophercloud/v2/openstack/loadbalancer/v2/loadbalancers"
	lbpools "github.com/gophercloud/gophercloud/v2/openstack/loadbalancer/v2/pools"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"
)

// TestGrantEndsBeforeTheUserIsGivenBack: no test borrows a user who has another project.
func TestGrantEndsBeforeTheUserIsGivenBack(t *testing.T) {
	t.Parallel()
	p, other := BorrowProject(t), BorrowProject(t)
	t.Cleanup(func() {
		opts := roles.ListAssignmentsOpts{UserID: other.UserID}
		for _, a := range all(t, roles.ListAssignments(p.keystone, opts), roles.ExtractRoleAssignments) {
			if a.Scope.Project.ID != other.ID {
				t.Errorf("the user is given back with a role in %+v", a.Scope)
			}
		}
	})
	p.Grant(t, other.UserID, "reader")
}

// TestIsolateAwaitsScheduling: a server of another test is being scheduled to a host when that is isolated.
func TestIsolateAwaitsScheduling(t *testing.T) {
	t.Parallel()
	host := ReservableHosts(t)[0]
	p, nova := BorrowProject(t), Compute(t, Login(t, "admin"))
	p.requestServers(t, host, "scheduled", 1)
	list := servers.List(nova, servers.ListOpts{AllTenants: true, TenantID: p.ID})
	deleted := make(chan error, 1)
	go func() { // as the other test does when its server is on the host
		for t.Context().Err() == nil {
			page, err := list.AllPages(t.Context())
			if err != nil {
				deleted <- err
				return
			}
			found, err := servers.ExtractServers(page)
			if len(found) == 1 && found[0].Status != "BUILD" {
				err = errors.Join(err, servers.Delete(t.Context(), nova, found[0].ID).ExtractErr())
				deleted <- err
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	}()
	Isolate(t, host)
	if found := all(t, list, servers.ExtractServers); len(found) > 0 {
		t.Errorf("the host is isolated, and server %s is %s on %q", found[0].ID, found[0].Status, found[0].Host)
	}
	check(t, <-deleted)
}

// TestHeavyTestsHaveNoParallelSubtests: three of them in a package would wait for one another for ever.
func TestHeavyTestsHaveNoParallelSubtests(t *testing.T) {
	t.Parallel()
	heavy := 0
	err := filepath.WalkDir("../..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") || filepath.Base(path) == "sandbox_test.go" {
			return err
		}
		text, err := os.ReadFile(path)
		for function := range strings.SplitSeq(string(text), "\nfunc ") {
			if !strings.Contains(function, "testkit.Heavy(t)") {
				continue
			}
			heavy++
			if strings.Count(function, "t.Parallel()") > 1 {
				name, _, _ := strings.Cut(function, "(")
				t.Errorf("%s: %s is heavy, and has parallel subtests", path, name)
			}
		}
		return err
	})
	if err != nil || heavy < 10 {
		t.Errorf("read %d heavy tests, %v", heavy, err)
	}
}

// TestSandboxSwitches: a service that is switched off is no piece of the sandbox.
func TestSandboxSwitches(t *testing.T) {
	t.Parallel()
	pieces := map[string][]string{
		"VOLUMES":       {"cinder-api", "cinder-scheduler", "cinder-volume"},
		"LOADBALANCERS": {"octavia-api", "octavia-worker"},
		"KEYS":          {"barbican"},
	}
	status := func(env ...string) string {
		// status exits with an error, because no piece is up. It writes nothing.
		cmd := exec.Command(filepath.Join(Root(), "scripts", "sandbox"), "status")
		cmd.Env = append(os.Environ(), append(env, "CLOUDFN_SANDBOX="+filepath.Join(t.TempDir(), "none"))...)
		out, _ := cmd.CombinedOutput()
		return string(out)
	}
	for name, own := range pieces {
		on, off := status(), status("SANDBOX_"+name+"=off")
		for _, piece := range slices.Concat(slices.Collect(maps.Values(pieces))...) {
			line := "\n" + piece + " "
			if !strings.Contains(on, line) || strings.Contains(off, line) == slices.Contains(own, piece) {
				t.Errorf("SANDBOX_%s=off, %s: on:\n%s\noff:\n%s", name, piece, on, off)
			}
		}
		if out := status("SANDBOX_" + name + "=maybe"); !strings.Contains(out, "it must be on or off") {
			t.Errorf("SANDBOX_%s=maybe: %s", name, out)
		}
	}
}

// TestSandboxCatalog: every service is at all three interfaces, and pods reach the admin one.
func TestSandboxCatalog(t *testing.T) {
	t.Parallel()
	settings := "\n" + string(must(os.ReadFile(filepath.Join(filepath.Dir(CloudsYAML(t)), "settings")))(t))
	setting := func(name string) string {
		_, rest, _ := strings.Cut(settings, "\nSANDBOX_"+name+"=")
		value, _, _ := strings.Cut(rest, "\n")
		return value
	}
	client := Login(t, "demo")
	catalog := must(tokens.Get(t.Context(), Identity(t, client), client.Token()).ExtractServiceCatalog())(t)
	hosts := map[string]map[string]string{}
	for _, service := range catalog.Entries {
		hosts[service.Type] = map[string]string{}
		for _, e := range service.Endpoints {
			hosts[service.Type][e.Interface] = must(url.Parse(e.URL))(t).Host
		}
	}
	for service, name := range map[string]string{
		"identity": "KEYSTONE", "image": "GLANCE", "placement": "PLACEMENT", "compute": "NOVA", "network": "NEUTRON",
		"volumev3": "CINDER", "load-balancer": "OCTAVIA", "key-manager": "BARBICAN",
	} {
		port := ":" + setting(name+"_PORT")
		inside, pods := setting("HOST")+port, setting("POD_HOST")+port
		want := map[string]string{"public": inside, "internal": inside, "admin": pods}
		if !maps.Equal(hosts[service], want) {
			t.Errorf("%s is at %v, want %v", service, hosts[service], want)
		}
	}
}

// TestLongSandboxVolumes: a member makes a volume of an image, grows it, changes its type, and attaches it to a server.
func TestLongSandboxVolumes(t *testing.T) {
	t.Parallel()
	p, f, ctx := NewProject(t), Sandbox(t), t.Context()
	member := p.Login(t)
	cinder, nova := BlockStorage(t, member), Compute(t, member)
	t.Cleanup(func() { p.DeleteVolumes(t) })
	opts := volumes.CreateOpts{Size: 1, Name: "of an image", ImageID: f.ImageID, Metadata: map[string]string{"a": "b"}}
	made := must(volumes.Create(ctx, cinder, opts, nil).Extract())(t)
	await := func(status string) *volumes.Volume {
		t.Helper()
		var v *volumes.Volume
		Eventually(t, time.Minute, "the volume is "+status, func() bool {
			v = must(volumes.Get(ctx, cinder, made.ID).Extract())(t)
			if strings.HasPrefix(v.Status, "error") {
				t.Fatalf("the volume is in status %s", v.Status)
			}
			return v.Status == status
		})
		return v
	}
	if v := await("available"); v.Bootable != "true" || v.VolumeType != "standard" {
		t.Errorf("got %+v, want a bootable volume of type standard", v)
	}
	check(t, volumes.ExtendSize(ctx, cinder, made.ID, volumes.ExtendSizeOpts{NewSize: 2}).ExtractErr())
	await("available")
	retype := volumes.ChangeTypeOpts{NewType: "fast", MigrationPolicy: volumes.MigrationPolicyNever}
	check(t, volumes.ChangeType(ctx, cinder, made.ID, retype).ExtractErr())
	if v := await("available"); v.Size != 2 || v.VolumeType != "fast" {
		t.Errorf("got %d GB of type %s, want 2 of type fast", v.Size, v.VolumeType)
	}
	byMetadata := volumes.ListOpts{Metadata: map[string]string{"a": "b"}}
	if found := all(t, volumes.List(cinder, byMetadata), volumes.ExtractVolumes); len(found) != 1 {
		t.Errorf("got %d volumes by their metadata, want 1", len(found))
	}

	server := p.BootWithAddress(t, "has a volume", 1)[0].ID
	attach := volumeattach.CreateOpts{VolumeID: made.ID}
	must(volumeattach.Create(ctx, nova, server, attach).Extract())(t)
	if v := await("in-use"); len(v.Attachments) != 1 || v.Attachments[0].ServerID != server {
		t.Errorf("it is attached to %+v, want server %s", v.Attachments, server)
	}
	check(t, volumeattach.Delete(ctx, nova, server, made.ID).ExtractErr())
	await("available")

	other := BlockStorage(t, Login(t, "reader"))
	_, err := volumes.Create(ctx, other, volumes.CreateOpts{Size: 1}, nil).Extract()
	if !gophercloud.ResponseCodeIs(err, 403) {
		t.Errorf("a reader makes a volume: %v, want 403", err)
	}
}

// TestLongSandboxLoadBalancers: a member makes a load balancer with all its parts. Its address is a port in Neutron.
func TestLongSandboxLoadBalancers(t *testing.T) {
	t.Parallel()
	p, ctx := NewProject(t), t.Context()
	member := p.Login(t)
	octavia := LoadBalancers(t, member)
	neutron := must(openstack.NewNetworkV2(member, gophercloud.EndpointOpts{}))(t)
	t.Cleanup(func() { p.DeleteLoadBalancers(t) })
	opts := loadbalancers.CreateOpts{VipNetworkID: Sandbox(t).NetworkID}
	b := must(loadbalancers.Create(ctx, octavia, opts).Extract())(t)
	// Octavia refuses a change until the last one is done.
	done := func() {
		t.Helper()
		Eventually(t, time.Minute, "the load balancer is ACTIVE", func() bool {
			status := must(loadbalancers.Get(ctx, octavia, b.ID).Extract())(t).ProvisioningStatus
			if status == "ERROR" {
				t.Fatal("the load balancer is in ERROR")
			}
			return status == "ACTIVE"
		})
	}
	done()
	port := must(ports.Get(ctx, neutron, b.VipPortID).Extract())(t)
	if port.FixedIPs[0].IPAddress != b.VipAddress || port.DeviceOwner != "Octavia" {
		t.Errorf("the port of %s is %+v", b.VipAddress, port)
	}
	pool := must(lbpools.Create(ctx, octavia, lbpools.CreateOpts{
		LoadbalancerID: b.ID, Protocol: lbpools.ProtocolHTTP, LBMethod: lbpools.LBMethodRoundRobin,
	}).Extract())(t)
	done()
	listener := must(listeners.Create(ctx, octavia, listeners.CreateOpts{
		LoadbalancerID: b.ID, Protocol: listeners.ProtocolHTTP, ProtocolPort: 80, DefaultPoolID: pool.ID,
	}).Extract())(t)
	done()
	must(lbpools.CreateMember(ctx, octavia, pool.ID, lbpools.CreateMemberOpts{
		Address: "192.0.2.1", ProtocolPort: 8080, SubnetID: b.VipSubnetID,
	}).Extract())(t)
	done()
	tree := must(json.Marshal(must(loadbalancers.GetStatuses(ctx, octavia, b.ID).Extract())(t)))(t)
	if n := strings.Count(string(tree), `"provisioning_status":"ACTIVE"`); n != 4 {
		t.Errorf("%d of 4 parts are ACTIVE: %s", n, tree)
	}
	check(t, listeners.Delete(ctx, octavia, listener.ID).ExtractErr())
	done()
	p.DeleteLoadBalancers(t)
	if _, err := ports.Get(ctx, neutron, b.VipPortID).Extract(); !gophercloud.ResponseCodeIs(err, 404) {
		t.Errorf("the port of the deleted load balancer: %v, want 404", err)
	}

	reader := LoadBalancers(t, Login(t, "reader"))
	_, err := loadbalancers.List(reader, loadbalancers.ListOpts{}).AllPages(ctx)
	if !gophercloud.ResponseCodeIs(err, 403) {
		t.Errorf("a reader lists load balancers: %v, want 403", err)
	}
	p.RemoveRole(t, p.UserID, "load-balancer_member")
	_, err = loadbalancers.Create(ctx, LoadBalancers(t, p.Login(t)), opts).Extract()
	p.grantMember(t) // for the cleanup
	if !gophercloud.ResponseCodeIs(err, 403) {
		t.Errorf("a member without Octavia's role makes a load balancer: %v, want 403", err)
	}
}

// TestLongSandboxKeys: a member stores a secret, reads it and deletes it; nobody else reads it.
func TestLongSandboxKeys(t *testing.T) {
	t.Parallel()
	p, ctx := NewProject(t), t.Context()
	barbican := KeyManager(t, p.Login(t))
	opts := secrets.CreateOpts{Name: "s", Payload: "the payload", PayloadContentType: "text/plain"}
	made := must(secrets.Create(ctx, barbican, opts).Extract())(t)
	id := made.SecretRef[strings.LastIndex(made.SecretRef, "/")+1:]
	t.Cleanup(func() { ignore(t, secrets.Delete(context.Background(), barbican, id).ExtractErr(), 404) })
	text := secrets.GetPayloadOpts{PayloadContentType: "text/plain"}
	if payload := must(secrets.GetPayload(ctx, barbican, id, text).Extract())(t); string(payload) != opts.Payload {
		t.Errorf("got %q", payload)
	}
	for _, cloud := range []string{"alt", "reader"} {
		other := KeyManager(t, Login(t, cloud))
		if _, err := secrets.GetPayload(ctx, other, id, text).Extract(); !gophercloud.ResponseCodeIs(err, 403) {
			t.Errorf("%s reads the secret: %v, want 403", cloud, err)
		}
	}
	check(t, secrets.Delete(ctx, barbican, id).ExtractErr())
	if _, err := secrets.Get(ctx, barbican, id).Extract(); !gophercloud.ResponseCodeIs(err, 404) {
		t.Errorf("the deleted secret: %v, want 404", err)
	}
}
