package testkit

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/keypairs"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/applicationcredentials"
)

// lending is the file of a project that tests borrow. Who has its lock has the project: a process that dies loses both.
type lending struct {
	ID, UserID, Name, Password string
	Borrowed                   bool // in the file of a dead process: the project may have anything in it
	Roles                      []string
}

// BorrowProject returns a project without servers that no other test has, in any process. Tests borrow the same few,
// because making and deleting one costs Keystone more than what most tests do. A test that changes more than servers
// gets one, too, and the project is removed after it. Nova's history of deleted servers stays: whoever counts it calls
// NewProject.
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
