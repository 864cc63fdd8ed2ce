package testkit

import (
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

	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/roles"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/tokens"
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
	if found := all(t, list, servers.ExtractServers); len(found) > 0 && found[0].Status != "DELETED" {
		t.Errorf("the host is isolated, and server %s is %s on %q", found[0].ID, found[0].Status, found[0].Host)
	}
	check(t, <-deleted)
}

// TestHeavyTestsHaveNoParallelSubtests: three of them in a package would wait for one another forever.
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
	for _, piece := range []string{"\nlibvirt ", "\nnova-guests "} { // the only ones that are off by default
		if strings.Contains(status(), piece) || !strings.Contains(status("SANDBOX_GUESTS=on"), piece) {
			t.Errorf("SANDBOX_GUESTS=on, and the default: %q must be a piece of the first only", piece)
		}
	}
	if out := status("SANDBOX_GUESTS=maybe"); !strings.Contains(out, "it must be on or off") {
		t.Errorf("SANDBOX_GUESTS=maybe: %s", out)
	}
}

// TestSandboxReleases: each release has a folder of its own, and a sandbox stays what it was made as.
func TestSandboxReleases(t *testing.T) {
	t.Parallel()
	made := t.TempDir()
	check(t, os.WriteFile(filepath.Join(made, "settings"), []byte("SANDBOX_RELEASE=epoxy\n"), 0o600))
	for _, tc := range []struct{ verb, release, folder, want string }{
		{"folder", "", "", "/var/tmp/cloudfn-sandbox\n"},
		{"folder", "zed", "", "/var/tmp/cloudfn-sandbox\n"},
		{"folder", "epoxy", "", "/var/tmp/cloudfn-sandbox-epoxy\n"},
		{"folder", "epoxy", made, made + "\n"},
		{"status", "", made, "\nkeystone         DOWN\n"},
		{"status", "zed", made, "the sandbox in " + made + " is epoxy: purge it first"},
		{"status", "queens", made + "/new", "SANDBOX_RELEASE is 'queens': it must be zed or epoxy"},
	} {
		cmd := exec.Command(filepath.Join(Root(), "scripts", "sandbox"), tc.verb)
		cmd.Env = append(os.Environ(), "SANDBOX_RELEASE="+tc.release, "CLOUDFN_SANDBOX="+tc.folder)
		if out, _ := cmd.CombinedOutput(); !strings.Contains(string(out), tc.want) {
			t.Errorf("%+v: %s", tc, out)
		}
	}
}

// TestSandboxCatalog: every service is at all three interfaces, and pods reach the admin one.
func TestSandboxCatalog(t *testing.T) {
	t.Parallel()
	setting := func(name string) string { return SandboxSetting(t, name) }
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
