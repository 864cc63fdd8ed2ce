package testkit

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
