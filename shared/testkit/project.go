package testkit

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/keypairs"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/applicationcredentials"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/projects"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/tokens"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/users"

	"github.com/cloudfn/cloudfn/shared/domain"
	shared "github.com/cloudfn/cloudfn/shared/openstack"
)

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
	out, err := InSandbox("/usr/bin/python3", "-c", script, filepath.Dir(CloudsYAML(t)), p.Token(t)).Output()
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
	return slices.DeleteFunc(list(t, Compute(t, p.Login(t))),
		func(s servers.Server) bool { return s.Status == "DELETED" })
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

// lending is the file of a project that tests borrow. Who has its lock has the project: a process that dies loses both.
type lending struct {
	ID, UserID, Name, Password string
	Borrowed                   bool // in the file of a dead process: the project may have anything in it
	Roles                      []string
}

// BorrowProject returns a project without servers that no other test has, in any process. Tests borrow the same few,
// because making and deleting one costs Keystone more than what most tests do. A test that changes more than servers
// gets one, too, and the project is removed after it. Nova's history of deleted servers stays: a test that counts it
// calls NewProject.
func BorrowProject(t testing.TB) *Project {
	t.Helper()
	dir := filepath.Join(filepath.Dir(CloudsYAML(t)), "test-projects") // scripts/sandbox reset removes it
	check(t, os.MkdirAll(dir, 0o700))
	for _, path := range must(filepath.Glob(filepath.Join(dir, "*.json")))(t) {
		if file := lock(t, path); file != nil {
			if p := borrow(t, file); p != nil {
				return p
			}
		}
	}
	p := makeProject(t)
	file := must(os.OpenFile(filepath.Join(dir, p.ID+".json"), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600))(t)
	check(t, syscall.Flock(int(file.Fd()), syscall.LOCK_EX))
	p.lend(t, file)
	return p
}

// lock returns nil when another test has the project, or has just removed it.
func lock(t testing.TB, path string) *os.File {
	t.Helper()
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil
	}
	if syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
		locked, _ := file.Stat()
		if there, err := os.Stat(path); err == nil && os.SameFile(there, locked) {
			return file
		}
	}
	file.Close()
	return nil
}

// borrow returns nil, and removes the project, when a process died with it.
func borrow(t testing.TB, file *os.File) *Project {
	t.Helper()
	var l lending
	err := json.NewDecoder(file).Decode(&l)
	keystone := must(openstack.NewIdentityV3(Login(t, "admin"), gophercloud.EndpointOpts{}))(t)
	p := &Project{
		ID: l.ID, DomainID: "default", UserID: l.UserID, Name: l.Name, password: l.Password, keystone: keystone,
	}
	if err != nil || l.Borrowed {
		if err == nil {
			p.remove(t)
		}
		_ = os.Remove(file.Name())
		file.Close()
		return nil
	}
	remember("a password", p.password)
	if !slices.Equal(l.Roles, memberRoles) { // an older version made it
		p.grantMember(t)
		p.changed = false
	}
	p.lend(t, file)
	return p
}

// lend gives the project back at the end of the test, or removes it when the test has changed it or has failed.
func (p *Project) lend(t testing.TB, file *os.File) {
	t.Helper()
	write := func(isBorrowed bool) {
		text := must(json.Marshal(lending{p.ID, p.UserID, p.Name, p.password, isBorrowed, memberRoles}))(t)
		check(t, file.Truncate(0))
		must(file.WriteAt(text, 0))(t)
	}
	write(true)
	t.Cleanup(func() {
		defer file.Close() // this releases the lock
		if p.changed || t.Failed() || p.hasTraces(t) {
			p.remove(t)
			_ = os.Remove(file.Name())
			return
		}
		p.removeServers(t, Login(t, "admin"))
		write(false)
	})
}

// hasTraces reports whether the product has left something of the user that is no server.
func (p *Project) hasTraces(t testing.TB) bool {
	ctx := context.Background()
	credentials := all(t, applicationcredentials.List(p.keystone, p.UserID, nil),
		applicationcredentials.ExtractApplicationCredentials)
	nova := Compute(t, Login(t, "admin"))
	nova.Microversion = "2.10" // keys of another user
	pages := must(keypairs.List(nova, keypairs.ListOpts{UserID: p.UserID}).AllPages(ctx))(t)
	keys := must(keypairs.ExtractKeyPairs(pages))(t)
	return len(credentials)+len(keys)+len(p.TrustsForAdmin(t)) > 0
}

// Session opens a session with a token of the project's member.
func (p *Project) Session(t testing.TB) *shared.Session {
	t.Helper()
	cloud := must(shared.New(shared.Config{Cloud: "demo", ConfigFile: CloudsYAML(t)}, shared.Options{}))(t)
	t.Cleanup(cloud.Close)
	return cloud.As(domain.Secret(p.Token(t)), p.ID)
}
