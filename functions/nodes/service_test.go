package nodes

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestChangeNode changes what is set of a node, by its ETag, and lists by it.
func TestChangeNode(t *testing.T) {
	t.Parallel()
	server := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function)
	admin, member := server.As(testkit.Token(t, "admin")), server.As(testkit.BorrowProject(t).Token(t))
	const path = "/v1/nodes/compute-1"
	const settings = `{"labels":{"rack":"r1","row":"2"},"region_zone":"west","network_zone":"n1",
		"providers":["docker"],"status_url":"https://compute-1.example/up","auto_cordon_after":"PT10M",
		"auto_drain_after":"P1DT2H"}`
	if etag := admin.Get(t, path).Header.Get("ETag"); etag != `"0"` {
		t.Errorf("before it is described, the ETag is %s", etag)
	}
	a := admin.Do(t, "PATCH", path, settings, "Content-Type", "application/json", "If-Match", `"0"`)
	var n Node
	if a.JSON(t, &n); a.Status != 200 || n.Labels["rack"] != "r1" || n.RegionZone != "west" || n.NetworkZone != "n1" ||
		n.Providers[0] != "docker" || n.StatusURL != "https://compute-1.example/up" || !n.Alert ||
		n.AutoCordon != "PT10M" || n.AutoDrain != "P1DT2H" || a.Header.Get("ETag") != `"1"` {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	for _, r := range []struct {
		query string
		want  bool
	}{
		{"label=rack=r1,row=2", true},
		{"label=rack=r2", false},
		{"label=rack=r1,other=", false},
		{"label=rack=r1&zone=nova&schedulable=true&status=up,suspect", true},
		{"label=rack=r1&zone=elsewhere", false},
		{"label=rack=r1&schedulable=false", false},
		{"label=rack=r1&status=unknown", false},
	} {
		var page NodePage
		admin.Get(t, "/v1/nodes?"+r.query).JSON(t, &page)
		if found := len(page.Items) == 1 && page.Items[0].Name == "compute-1"; found != r.want || len(page.Items) > 1 {
			t.Errorf("%s: got %+v", r.query, page.Items)
		}
	}
	for _, r := range []struct {
		client     *testkit.Client
		path, body string
		header     []string
		status     int
	}{
		{admin, path, `{}`, []string{"If-Match", `"0"`}, 412},
		{admin, path, `{"alert":false}`, []string{"If-Match", `"9", "1"`}, 200},
		{admin, path, `{"labels":{"row":null,"disk":"ssd"},"auto_cordon_after":null,"providers":null}`, nil, 200},
		{member, path, `{}`, nil, 403},
		{admin, path, `{"auto_cordon_after":""}`, nil, 400},
		{admin, "/v1/nodes/no.such.host", `{}`, nil, 404},
		{admin, path, `{"status_url":"ftp://x"}`, nil, 400},
		{admin, path, `{"status_url":"/up"}`, nil, 400},
		{admin, path, `{"status_url":"http://compute-1.example/up"}`, nil, 400},
		{admin, path, `{"status_url":"https://me:pw@compute-1.example/up"}`, nil, 400},
		{admin, path, `{"status_url":"https://169.254.169.254/up"}`, nil, 400},
		{admin, path, `{"labels":{"":"x"}}`, nil, 400},
		{admin, path, `{"labels":{"-a":"x"}}`, nil, 400},
		{admin, path, `{"labels":{"a/b/c":"x"}}`, nil, 400},
		{admin, path, `{"labels":{"a":"two words"}}`, nil, 400},
		{admin, path, `{"labels":{"a/b/c":null,"example.com/row":null}}`, nil, 200},
		{admin, path, fmt.Sprintf(`{"labels":{"a":%q}}`, strings.Repeat("x", 256)), nil, 400},
		{admin, path, `{"auto_cordon_after":"P1Y"}`, nil, 400},
		{admin, path, `{"auto_drain_after":"P1M"}`, nil, 400},
		{admin, path, `{"auto_drain_after":"1h"}`, nil, 400},
		{admin, path, `{"lables":{}}`, nil, 400},
	} {
		if a := r.client.Do(t, "PATCH", r.path, r.body,
			append([]string{"Content-Type", "application/json"}, r.header...)...); a.Status != r.status {
			t.Errorf("%s: got %d %s, want %d", r.body, a.Status, a.Body, r.status)
		}
	}
	a = admin.Get(t, path)
	if n = (Node{}); a.Header.Get("ETag") != `"4"` {
		t.Errorf("the ETag is %s", a.Header.Get("ETag"))
	}
	if a.JSON(t, &n); fmt.Sprint(n.Labels) != "map[disk:ssd rack:r1]" || n.AutoCordon != "" || n.Alert ||
		n.AutoDrain != "P1DT2H" || len(n.Providers) != 0 || n.RegionZone != "west" {
		t.Errorf("what is absent stays, and null resets: %+v", n)
	}
	a = admin.Do(t, "PATCH", path, `{"labels":null,"alert":null,"status_url":null,"region_zone":null}`,
		"Content-Type", "application/json")
	if n = (Node{}); a.Status != 200 {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	if a.JSON(t, &n); len(n.Labels) != 0 || !n.Alert || n.StatusURL != "" || n.RegionZone != "" ||
		n.NetworkZone != "n1" {
		t.Errorf("what is null is reset: %+v", n)
	}
}

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
