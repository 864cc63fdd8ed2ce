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
	"sync"
	"testing"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"
	"github.com/gophercloud/gophercloud/v2/openstack/config/clouds"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/projects"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/tokens"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/users"
)

// CloudsYAML returns the path of the sandbox's clouds.yaml. Everything that needs the sandbox calls it: without a
// sandbox the test fails, and with TEST_CLOUD=none (make check) it is skipped, for a reason that scripts/gotest
// accepts.
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
		t.Fatalf("no sandbox cloud: run scripts/sandbox up (%v)", err)
	}
	return file
}

// Login logs in to one of the clouds in clouds.yaml. The admin logs in once per test process.
func Login(t testing.TB, cloud string) *gophercloud.ProviderClient {
	t.Helper()
	if cloud != "admin" {
		return login(t, authOptions(t, cloud))
	}
	admin.Lock()
	defer admin.Unlock()
	if admin.client == nil {
		admin.client = login(t, authOptions(t, cloud))
	}
	return admin.client
}

var admin struct {
	sync.Mutex
	client *gophercloud.ProviderClient
}

// authOptions reads how to log in to one of the clouds in clouds.yaml.
func authOptions(t testing.TB, cloud string) gophercloud.AuthOptions {
	t.Helper()
	auth, _, _, err := clouds.Parse(clouds.WithCloudName(cloud), clouds.WithLocations(CloudsYAML(t)))
	check(t, err)
	return auth
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

// Token returns a new token of one of the clouds in clouds.yaml.
func Token(t testing.TB, cloud string) string { t.Helper(); return Login(t, cloud).Token() }

// Compute returns a client of Nova.
func Compute(t testing.TB, client *gophercloud.ProviderClient) *gophercloud.ServiceClient {
	t.Helper()
	nova := must(openstack.NewComputeV2(client, gophercloud.EndpointOpts{}))(t)
	return nova
}

// Project is a Keystone project of the test's own, with a user who is a member of it.
type Project struct {
	ID       string
	DomainID string
	UserID   string
	Name     string // the project's, and its member's
	password string
	keystone *gophercloud.ServiceClient
	changed  bool // more than servers: no other test borrows it
}

const role = "member"

// memberRoles are what the member has: Octavia and Barbican require roles of their own.
var memberRoles = []string{role, "load-balancer_member", "creator"}

// NewProject makes a project with one member in the default domain. Both are removed at the end of the test, with all
// servers. Most tests borrow one instead.
func NewProject(t testing.TB) *Project {
	t.Helper()
	p := makeProject(t)
	t.Cleanup(func() { p.remove(t) })
	return p
}

func makeProject(t testing.TB) *Project {
	t.Helper()
	ctx := context.Background()
	admin := Login(t, "admin")
	keystone := must(openstack.NewIdentityV3(admin, gophercloud.EndpointOpts{}))(t)
	p := &Project{DomainID: "default", password: newPassword(), keystone: keystone}
	name := fmt.Sprintf("test-%x", rand.Uint64())
	project := must(projects.Create(ctx, keystone, projects.CreateOpts{Name: name, DomainID: p.DomainID}).Extract())(t)
	p.ID, p.Name = project.ID, name
	opts := users.CreateOpts{Name: name, DomainID: p.DomainID, Password: p.password}
	p.UserID = must(users.Create(ctx, keystone, opts).Extract())(t).ID
	p.grantMember(t)
	p.changed = false
	return p
}

func newPassword() string { return remember("a password", fmt.Sprintf("pw-%016x", rand.Uint64())) }

// Login logs in as the project's member.
func (p *Project) Login(t testing.TB) *gophercloud.ProviderClient {
	t.Helper()
	return login(t, gophercloud.AuthOptions{
		IdentityEndpoint: p.keystone.Endpoint, UserID: p.UserID, Password: p.password,
		Scope: &gophercloud.AuthScope{ProjectID: p.ID},
	})
}

// Token returns a new token of the project's member.
func (p *Project) Token(t testing.TB) string { t.Helper(); return p.Login(t).Token() }

// ReaderToken returns a token of a user who has only the role reader in the project.
func (p *Project) ReaderToken(t testing.TB) string {
	t.Helper()
	reader := BorrowProject(t)
	p.Grant(t, reader.UserID, "reader")
	in := *reader
	in.ID = p.ID
	return in.Token(t)
}

// Unscoped returns an unscoped token of the project's member.
func (p *Project) Unscoped(t testing.TB) string {
	t.Helper()
	opts := tokens.AuthOptions{UserID: p.UserID, Password: p.password, Scope: tokens.Scope{}}
	client := &gophercloud.ServiceClient{ProviderClient: &gophercloud.ProviderClient{}, Endpoint: p.keystone.Endpoint}
	id := must(tokens.Create(context.Background(), client, &opts).ExtractTokenID())(t)
	return remember("a token", id)
}

// DomainToken returns a token scoped to the domain of the service account, which may read there.
func DomainToken(t testing.TB) string {
	t.Helper()
	auth := authOptions(t, "collector")
	auth.Scope = &gophercloud.AuthScope{DomainName: auth.DomainName}
	return login(t, auth).Token()
}

// ExpiredToken returns a token of the project's member that expired an hour ago: a real one, with its end moved, and
// encrypted with the sandbox's own key.
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
		t.Fatalf("moving the end of a token: %v", err)
	}
	return remember("a token", strings.TrimSpace(string(out)))
}

// Revoke revokes a token.
func (p *Project) Revoke(t testing.TB, token string) {
	t.Helper()
	check(t, tokens.Revoke(context.Background(), p.keystone, token).Err)
}

// Servers lists the project's servers.
func (p *Project) Servers(t testing.TB) []servers.Server {
	t.Helper()
	return list(t, Compute(t, p.Login(t)))
}

func list(t testing.TB, nova *gophercloud.ServiceClient) []servers.Server {
	t.Helper()
	nova.Microversion = "2.47"
	found := all(t, servers.List(nova, servers.ListOpts{}), servers.ExtractServers)
	return found
}

func (p *Project) removeServers(t testing.TB, admin *gophercloud.ProviderClient) {
	ctx := context.Background()
	nova := Compute(t, admin)
	left := func() []servers.Server {
		pages, err := servers.List(nova, servers.ListOpts{AllTenants: true, TenantID: p.ID}).AllPages(ctx)
		if err != nil { // retry: Nova closes connections that were idle for long
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

func (p *Project) remove(t testing.TB) {
	ctx := context.Background()
	p.removeServers(t, Login(t, "admin"))
	_ = users.Delete(ctx, p.keystone, p.UserID).ExtractErr()
	_ = projects.Delete(ctx, p.keystone, p.ID).ExtractErr()
}

// OpenStack runs python-openstackclient with one of the clouds in clouds.yaml. A run takes 1.5 s of processor time, so
// do not poll with it.
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
