package testkit

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"
	"github.com/gophercloud/gophercloud/v2/openstack/config/clouds"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/projects"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/roles"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/tokens"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/users"
)

// CloudsYAML is the sandbox's clouds.yaml. `make test` has brought the sandbox up; a test that runs without it fails and
// says so. `make check` sets TEST_CLOUD=none: then the test is left out, and scripts/testtime counts it. Whatever needs
// the sandbox calls this.
func CloudsYAML(t testing.TB) string {
	t.Helper()
	if os.Getenv("TEST_CLOUD") == "none" {
		t.Skip("left out: it needs the sandbox cloud, and TEST_CLOUD=none")
	}
	dir := os.Getenv("CLOUDFN_SANDBOX")
	if dir == "" {
		dir = "/var/tmp/cloudfn-sandbox"
	}
	file := filepath.Join(dir, "clouds.yaml")
	if _, err := os.Stat(file); err != nil {
		t.Fatalf("there is no sandbox cloud: run scripts/sandbox up (%v)", err)
	}
	return file
}

// Login is a client of one of the clouds in clouds.yaml.
func Login(t testing.TB, cloud string) *gophercloud.ProviderClient {
	t.Helper()
	auth, _, _, err := clouds.Parse(clouds.WithCloudName(cloud), clouds.WithLocations(CloudsYAML(t)))
	if err != nil {
		t.Fatal(err)
	}
	return login(t, auth)
}

func login(t testing.TB, auth gophercloud.AuthOptions) *gophercloud.ProviderClient {
	t.Helper()
	client, err := openstack.AuthenticatedClient(context.Background(), auth)
	if err != nil {
		t.Fatalf("the sandbox cloud does not answer: run scripts/sandbox up (%v)", err)
	}
	remember("a token", client.Token())
	return client
}

// Token is a fresh token of one of the clouds in clouds.yaml.
func Token(t testing.TB, cloud string) string { t.Helper(); return Login(t, cloud).Token() }

// Compute is Nova through a client.
func Compute(t testing.TB, client *gophercloud.ProviderClient) *gophercloud.ServiceClient {
	t.Helper()
	nova, err := openstack.NewComputeV2(client, gophercloud.EndpointOpts{})
	if err != nil {
		t.Fatal(err)
	}
	return nova
}

// Project is a Keystone project of the test's own, with a user who has one role in it.
type Project struct {
	ID       string
	DomainID string
	UserID   string
	Name     string // the project's, and its member's
	password string
	keystone *gophercloud.ServiceClient
}

const role = "member"

// NewProject makes a project and a member of it in the domain of the cloud "demo"; at the test's end both go,
// with every server that is left.
func NewProject(t testing.TB) *Project {
	t.Helper()
	ctx := context.Background()
	admin := Login(t, "admin")
	keystone, err := openstack.NewIdentityV3(admin, gophercloud.EndpointOpts{})
	if err != nil {
		t.Fatal(err)
	}
	p := &Project{DomainID: "default", password: remember("a password", fmt.Sprintf("pw-%016x", rand.Uint64())), keystone: keystone}
	name := fmt.Sprintf("test-%x", rand.Uint64())
	project, err := projects.Create(ctx, keystone, projects.CreateOpts{Name: name, DomainID: p.DomainID}).Extract()
	if err != nil {
		t.Fatal(err)
	}
	p.ID, p.Name = project.ID, name
	user, err := users.Create(ctx, keystone, users.CreateOpts{Name: name, DomainID: p.DomainID, Password: p.password}).Extract()
	if err != nil {
		t.Fatal(err)
	}
	p.UserID = user.ID
	t.Cleanup(func() { p.remove(t, admin) })
	p.Grant(t, p.UserID, role)
	return p
}

// Grant gives a user a role in the project.
func (p *Project) Grant(t testing.TB, userID, name string) {
	t.Helper()
	opts := roles.AssignOpts{UserID: userID, ProjectID: p.ID}
	if err := roles.Assign(context.Background(), p.keystone, p.role(t, name), opts).ExtractErr(); err != nil {
		t.Fatal(err)
	}
}

// RemoveRole takes a role in the project from a user.
func (p *Project) RemoveRole(t testing.TB, userID, name string) {
	t.Helper()
	opts := roles.UnassignOpts{UserID: userID, ProjectID: p.ID}
	if err := roles.Unassign(context.Background(), p.keystone, p.role(t, name), opts).ExtractErr(); err != nil {
		t.Fatal(err)
	}
}

// role is the id of a role.
func (p *Project) role(t testing.TB, name string) string {
	t.Helper()
	pages, err := roles.List(p.keystone, roles.ListOpts{Name: name}).AllPages(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	found, err := roles.ExtractRoles(pages)
	if err != nil || len(found) != 1 {
		t.Fatalf("role %s: %v %v", name, found, err)
	}
	return found[0].ID
}

// Login is a client with the project's member.
func (p *Project) Login(t testing.TB) *gophercloud.ProviderClient {
	t.Helper()
	return login(t, gophercloud.AuthOptions{
		IdentityEndpoint: p.keystone.Endpoint, UserID: p.UserID, Password: p.password, Scope: &gophercloud.AuthScope{ProjectID: p.ID},
	})
}

// Token is a fresh token of the project's member.
func (p *Project) Token(t testing.TB) string { t.Helper(); return p.Login(t).Token() }

// ReaderToken is a token of somebody who may only read in the project.
func (p *Project) ReaderToken(t testing.TB) string {
	t.Helper()
	reader := NewProject(t)
	p.Grant(t, reader.UserID, "reader")
	in := *reader
	in.ID = p.ID
	return in.Token(t)
}

// Unscoped is a token of the project's member that is scoped to nothing.
func (p *Project) Unscoped(t testing.TB) string {
	t.Helper()
	opts := tokens.AuthOptions{UserID: p.UserID, Password: p.password, Scope: tokens.Scope{}}
	client := &gophercloud.ServiceClient{ProviderClient: &gophercloud.ProviderClient{}, Endpoint: p.keystone.Endpoint}
	id, err := tokens.Create(context.Background(), client, &opts).ExtractTokenID()
	if err != nil {
		t.Fatal(err)
	}
	return remember("a token", id)
}

// DomainToken is a token that is scoped to the domain of the service account, which reads there.
func DomainToken(t testing.TB) string {
	t.Helper()
	auth, _, _, err := clouds.Parse(clouds.WithCloudName("collector"), clouds.WithLocations(CloudsYAML(t)))
	if err != nil {
		t.Fatal(err)
	}
	auth.Scope = &gophercloud.AuthScope{DomainName: auth.DomainName}
	return login(t, auth).Token()
}

// ExpiredToken is a token of the project's member that ended an hour ago. A real one would take the whole life of
// a token to come by, so this is a real one whose end was moved, sealed again with the sandbox's own key.
func (p *Project) ExpiredToken(t testing.TB) string {
	t.Helper()
	const script = `
import os, sys, time, msgpack
from cryptography.fernet import Fernet
keys = os.path.join(sys.argv[1], 'keystone', 'fernet')
key = open(os.path.join(keys, max(os.listdir(keys), key=int))).read()
token = sys.argv[2] + '=' * (-len(sys.argv[2]) % 4)
payload = msgpack.unpackb(Fernet(key).decrypt(token))
moved = [time.time() - 3600 if isinstance(field, float) else field for field in payload]
print(Fernet(key).encrypt(msgpack.packb(moved)).decode().rstrip('='))`
	out, err := exec.Command("/usr/bin/python3", "-c", script, filepath.Dir(CloudsYAML(t)), p.Token(t)).Output()
	if err != nil {
		t.Fatalf("moving a token's end: %v", err)
	}
	return remember("a token", strings.TrimSpace(string(out)))
}

// Revoke ends a token.
func (p *Project) Revoke(t testing.TB, token string) {
	t.Helper()
	if err := tokens.Revoke(context.Background(), p.keystone, token).Err; err != nil {
		t.Fatal(err)
	}
}

// Servers lists the project's servers by Nova itself.
func (p *Project) Servers(t testing.TB) []servers.Server {
	t.Helper()
	return list(t, Compute(t, p.Login(t)))
}

func list(t testing.TB, nova *gophercloud.ServiceClient) []servers.Server {
	t.Helper()
	nova.Microversion = "2.47"
	pages, err := servers.List(nova, servers.ListOpts{}).AllPages(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	found, err := servers.ExtractServers(pages)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func (p *Project) removeServers(t testing.TB, admin *gophercloud.ProviderClient) {
	ctx := context.Background()
	nova := Compute(t, admin)
	left := func() []servers.Server {
		pages, err := servers.List(nova, servers.ListOpts{AllTenants: true, TenantID: p.ID}).AllPages(ctx)
		if err != nil { // once more: Nova closes connections that were idle for long
			pages, err = servers.List(nova, servers.ListOpts{AllTenants: true, TenantID: p.ID}).AllPages(ctx)
		}
		if err != nil {
			t.Errorf("removing project %s: %v", p.ID, err)
			return nil
		}
		found, _ := servers.ExtractServers(pages)
		return found
	}
	for _, s := range left() {
		if err := servers.ForceDelete(ctx, nova, s.ID).ExtractErr(); err != nil {
			_ = servers.Delete(ctx, nova, s.ID).ExtractErr()
		}
	}
	for end := time.Now().Add(time.Minute); len(left()) > 0 && time.Now().Before(end); {
		time.Sleep(500 * time.Millisecond)
	}
}

func (p *Project) remove(t testing.TB, admin *gophercloud.ProviderClient) {
	ctx := context.Background()
	p.removeServers(t, admin)
	_ = users.Delete(ctx, p.keystone, p.UserID).ExtractErr()
	_ = projects.Delete(ctx, p.keystone, p.ID).ExtractErr()
}

// OpenStack runs python-openstackclient, the way an operator would, with one of the clouds in clouds.yaml. Each run takes 1.5 s of
// processor time: it is for tests that compare with what it shows, and not to be waited with.
func OpenStack(t testing.TB, cloud string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "openstack", args...)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "OS_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, "OS_CLIENT_CONFIG_FILE="+CloudsYAML(t), "OS_CLOUD="+cloud)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("openstack %s: %v", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out))
}

func lastLine(out []byte) string {
	lines := bytes.Split(bytes.TrimSpace(out), []byte("\n"))
	return string(lines[len(lines)-1])
}
