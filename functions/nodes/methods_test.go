package nodes

import (
	"testing"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestMethods has a row for each method of nodes in the source, by its name there, and uses it on a real host.
func TestMethods(t *testing.T) {
	t.Parallel()
	m := maintain(t)
	path := "/v1/nodes/" + m.host
	for _, r := range []struct {
		name, method, path, body string
		status                   int
	}{
		{"ListNode", "GET", "/v1/nodes", "", 200},
		{"GetNode", "GET", path, "", 200},
		{"UpdateNode", "PATCH", path, `{"labels":{"rack":"r1"},"region_zone":"west"}`, 200},
		{"CordonNode", "POST", path + "/cordon", `{"reason":"a disk fails"}`, 200},
		{"DrainNode", "POST", path + "/drain", `{"parallel":1}`, 202},
		{"UncordonNode while it is drained", "POST", path + "/uncordon", "", 409},
		{"DrainNode is cancelled", "POST", path + "/cancel-drain", "", 202},
		{"UncordonNode", "POST", path + "/uncordon", "", 200},
		{"DeleteNode of a host that is up", "DELETE", path, "", 409},
	} {
		if a := m.admin.Do(t, r.method, r.path, r.body, "Content-Type", "application/json"); a.Status != r.status {
			t.Errorf("%s: got %d %s, want %d", r.name, a.Status, a.Body, r.status)
		}
	}
	if n := do(t, m.admin, "GET", path, 200); n.Labels["rack"] != "r1" || !n.Schedulable || n.Servers != 0 {
		t.Errorf("got %+v", n)
	}
	member := m.admin.As(testkit.BorrowProject(t).Token(t))
	for _, method := range []string{"cordon", "uncordon", "drain", "cancel-drain"} {
		if a := member.Post(t, path+"/"+method, ""); a.Status != 403 {
			t.Errorf("%s by a member: got %d %s", method, a.Status, a.Body)
		}
	}
}
