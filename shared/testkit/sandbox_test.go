package testkit

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/roles"
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
