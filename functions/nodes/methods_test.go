package nodes

import (
	"testing"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestMethods has a row for each method of nodes in the source, by its name there. Each succeeds on a real host, in
// this order; DeleteNode takes one that only an agent reports, because no process of the sandbox may lose its service.
func TestMethods(t *testing.T) {
	t.Parallel()
	m := maintain(t)
	path := "/v1/nodes/" + m.host
	var made NodeToken
	m.admin.Post(t, path+"/token", "").JSON(t, &made)
	if a := m.admin.Post(t, "/v1/nodes/metal-1/token", ""); a.Status != 201 {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	isCordoned := func(n Node) bool { return !n.Schedulable && n.CordonedBy == "cloudfn" }
	for _, r := range []struct {
		name, method, path, body string
		status                   int
		after                    func(Node) bool // what the host is then
	}{
		{"ListNode", "GET", "/v1/nodes", "", 200, nil},
		{"GetNode", "GET", path, "", 200, func(n Node) bool { return n.Schedulable && n.Name == m.host }},
		{
			"UpdateNode", "POST", path + "/heartbeat", `{"status":"up"}`, 204,
			func(n Node) bool { return !n.HeartbeatAt.IsZero() && m.count("nodes where agent_status = 'up'") == 1 },
		},
		{"CordonNode", "POST", path + "/cordon", `{"reason":"a disk fails"}`, 200, isCordoned},
		{
			"DrainNode", "POST", path + "/drain", `{"parallel":1}`, 202,
			func(n Node) bool { return isCordoned(n) && n.Drain != nil && n.Drain.State == "running" },
		},
		{
			"UncordonNode", "POST", path + "/uncordon", "", 200,
			func(n Node) bool { return n.Schedulable && n.CordonedBy == "" && m.nova().IsEnabled },
		},
		{"DeleteNode", "DELETE", "/v1/nodes/metal-1", "", 204, nil},
	} {
		t.Run(r.name, func(t *testing.T) {
			client, header := m.admin, []string{"Content-Type", "application/json"}
			switch r.name {
			case "UpdateNode":
				client, header = m.admin.As(""), append(header, "Authorization", "Bearer "+made.Token)
			case "UncordonNode":
				m.post("cancel-drain", "", 202)
			}
			if a := client.Do(t, r.method, r.path, r.body, header...); a.Status != r.status {
				t.Fatalf("got %d %s, want %d", a.Status, a.Body, r.status)
			}
			if r.after != nil {
				if n := do(t, m.admin, "GET", path, 200); !r.after(n) {
					t.Errorf("then the host is %+v", n)
				}
			}
		})
	}
	do(t, m.admin, "GET", "/v1/nodes/metal-1", 404)
	do(t, m.admin, "DELETE", path, 409)
	member := m.admin.As(testkit.BorrowProject(t).Token(t))
	for _, method := range []string{"cordon", "uncordon", "drain", "cancel-drain", "token"} {
		if a := member.Post(t, path+"/"+method, ""); a.Status != 403 {
			t.Errorf("%s by a member: got %d %s", method, a.Status, a.Body)
		}
	}
}
