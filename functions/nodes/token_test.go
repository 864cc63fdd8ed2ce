package nodes

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestReportNode: an agent reports the node whose token it has, and no other. Admins make tokens, which are shown once.
func TestReportNode(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	server := testkit.Start(t, testkit.Env(t, database, nil), Function)
	admin, member := server.As(testkit.Token(t, "admin")), server.As(testkit.BorrowProject(t).Token(t))
	create := func(name string) string {
		t.Helper()
		var made NodeToken
		a := admin.Post(t, "/v1/nodes/"+name+"/token", "")
		if a.JSON(t, &made); a.Status != 201 || made.Token == "" {
			t.Fatalf("got %d %s", a.Status, a.Body)
		}
		return made.Token
	}
	old := create("metal-1")
	one, two := create("metal-1"), create("metal-2")
	for _, name := range []string{"-x", strings.Repeat("x", 256)} {
		if a := admin.Post(t, "/v1/nodes/"+name+"/token", ""); a.Status != 400 {
			t.Errorf("%.40s: got %d %s", name, a.Status, a.Body)
		}
	}
	if a := member.Post(t, "/v1/nodes/metal-3/token", ""); a.Status != 403 {
		t.Errorf("a member makes a token: %d %s", a.Status, a.Body)
	}
	report := func(name, token, body string) int {
		t.Helper()
		return server.As("").Do(t, "POST", "/v1/nodes/"+name+"/heartbeat", body, "Content-Type", "application/json",
			"Authorization", "Bearer "+token).Status
	}
	for _, r := range []struct {
		name, token, body string
		status            int
	}{
		{"metal-1", one, `{"status":"suspect","reason":"a disk fails"}`, 204},
		{"metal-1", one, `{"status":"broken"}`, 400},
		{"metal-1", one, `{}`, 400},
		{"metal-1", old, `{"status":"up"}`, 401},
		{"metal-1", "guess", `{"status":"up"}`, 401},
		{"metal-1", "", `{"status":"up"}`, 401},
		{"metal-1", two, `{"status":"up"}`, 403},
		{"never-seen", two, `{"status":"up"}`, 403},
		{"never-seen", "guess", `{"status":"up"}`, 401},
		{"metal-2", two, `{"status":"up"}`, 204},
	} {
		if status := report(r.name, r.token, r.body); status != r.status {
			t.Errorf("%s %s: got %d, want %d", r.name, r.body, status, r.status)
		}
	}
	if a := admin.Post(t, "/v1/nodes/metal-1/heartbeat", `{"status":"up"}`); a.Status != 401 {
		t.Errorf("an admin's token is no node's: got %d %s", a.Status, a.Body)
	}
	got := testkit.Scalar[[]string](t, conn, `
select array_agg(concat_ws(' ', name, agent_status, agent_reason) order by name) from nodes`)
	if fmt.Sprint(got) != "[metal-1 suspect a disk fails metal-2 up ]" {
		t.Errorf("stored %q", got)
	}
	if n := do(t, admin, "GET", "/v1/nodes/metal-1", 200); n.Status != "unknown" || n.Schedulable ||
		n.HeartbeatAt.IsZero() || n.CordonedBy != "" {
		t.Errorf("before watch-nodes has observed it: %+v", n)
	}
	for _, token := range []string{old, one, two} {
		stored := testkit.Scalar[bool](t, conn, `
select exists (select from node_tokens t where t::text like '%' || $1 || '%')
    or exists (select from requests r where r::text like '%' || $1 || '%')`, token)
		if stored {
			t.Error("a token is stored")
		}
	}
	do(t, member, "DELETE", "/v1/nodes/metal-1/token", 403)
	if a := admin.Do(t, "DELETE", "/v1/nodes/metal-1/token", ""); a.Status != 204 {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	do(t, admin, "DELETE", "/v1/nodes/metal-1/token", 404)
	if status := report("metal-1", one, `{"status":"up"}`); status != 401 {
		t.Errorf("a revoked token: got %d", status)
	}
	if a := admin.Do(t, "DELETE", "/v1/nodes/metal-2", ""); a.Status != 204 ||
		testkit.Scalar[int](t, conn, "select count(*)::int from node_tokens") != 0 {
		t.Errorf("its token outlives a node: %d %s", a.Status, a.Body)
	}
}
