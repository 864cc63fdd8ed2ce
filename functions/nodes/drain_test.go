package nodes

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// maintained is a function that an admin uses on an isolated host, and the database of it.
type maintained struct {
	*testing.T

	admin *testkit.Client
	conn  *pgx.Conn
	host  string // its servers, and whether it is enabled, are this test's
}

func maintain(t *testing.T) maintained {
	t.Helper()
	database, host := testkit.Database(t), testkit.ReservableHosts(t)[0] // they are enabled after the test
	server := testkit.Start(t, testkit.Env(t, database, nil), Function)
	return maintained{t, server.As(testkit.Token(t, "admin")), testkit.Connect(t, database), host}
}

// post sends a request about the host and checks the status of the answer.
func (m maintained) post(action, body string, status int) (n Node) {
	m.Helper()
	a := m.admin.Post(m, "/v1/nodes/"+m.host+"/"+action, body)
	if a.Status != status {
		m.Fatalf("%s: got %d %s, want %d", action, a.Status, a.Body, status)
	}
	if status < 300 {
		a.JSON(m, &n)
	}
	return n
}

// refused checks that a request is a conflict, and says why.
func (m maintained) refused(action, body, why string) {
	m.Helper()
	if a := m.admin.Post(m, "/v1/nodes/"+m.host+"/"+action, body); a.Status != 409 ||
		!strings.Contains(string(a.Body), why) {
		m.Errorf("%s: got %d %s, want 409 with %q", action, a.Status, a.Body, why)
	}
}

// nova is the host as Nova shows it.
func (m maintained) nova() domain.ComputeHost {
	m.Helper()
	host, err := testkit.Session(m, "admin").ComputeHost(m.Context(), m.host)
	if err != nil {
		m.Fatal(err)
	}
	return host
}

func (m maintained) exec(sql string) {
	m.Helper()
	if _, err := m.conn.Exec(m.Context(), sql); err != nil {
		m.Fatal(err)
	}
}

func (m maintained) count(sql string, args ...any) int {
	m.Helper()
	return testkit.Scalar[int](m, m.conn, "select count(*)::int from "+sql, args...)
}

// TestCordon: Nova shows the reason, someone else's stays theirs, and only what cloudfn has cordoned is opened.
func TestCordon(t *testing.T) {
	t.Parallel()
	m := maintain(t)
	if n := m.post("cordon", `{"reason":"a disk fails"}`, 200); n.Schedulable || n.CordonedBy != "cloudfn" ||
		n.DisabledReason != "cloudfn: cordoned by admin: a disk fails" {
		t.Errorf("got %+v", n)
	}
	if h := m.nova(); h.IsEnabled || h.DisabledReason != "cloudfn: cordoned by admin: a disk fails" {
		t.Errorf("Nova has %+v", h)
	}
	if n := m.post("cordon", "", 200); n.DisabledReason != "cloudfn: cordoned by admin: a disk fails" {
		t.Errorf("cordoned twice: %+v", n)
	}
	if events := m.count("events where type = $1 and (data->>'cordoned')::boolean", domain.NodeEvent); events != 1 {
		t.Errorf("%d events", events)
	}
	if n := m.post("uncordon", "", 200); !n.Schedulable || n.CordonedBy != "" || n.DisabledReason != "" {
		t.Errorf("got %+v", n)
	}
	m.post("uncordon", "", 200)
	if h := m.nova(); !h.IsEnabled {
		t.Errorf("Nova has %+v", h)
	}
	other := testkit.Session(t, "leases")
	if err := other.DisableService(t.Context(), m.nova().ServiceID, "a new kernel"); err != nil {
		t.Fatal(err)
	}
	m.post("cordon", `{"reason":"🚀"}`, 400)
	m.refused("cordon", `{"reason":"x","force":true}`, `with the reason \"a new kernel\"`)
	if n := do(t, m.admin, "GET", "/v1/nodes/"+m.host, 200); n.CordonedBy != "other" || n.Schedulable {
		t.Errorf("another admin's: %+v", n)
	}
	m.refused("uncordon", "", `with the reason \"a new kernel\"`)
	if h := m.nova(); h.IsEnabled || h.DisabledReason != "a new kernel" {
		t.Errorf("Nova has %+v", h)
	}
	if n := m.count("nodes where cordoned_at is not null"); n != 0 {
		t.Error("another admin's cordon was recorded as ours")
	}
}

// TestDrainNode begins a drain and cancels it; what watch-nodes does meanwhile is tested with it. A dry run changes
// nothing.
func TestDrainNode(t *testing.T) {
	t.Parallel()
	m := maintain(t)
	id := m.boot("moves")
	d := m.post("drain?dry_run=true", "", 200).Drain
	if d == nil || d.State != planned || d.ID != nil || len(d.Servers) != 1 || d.Servers[0].ServerID != id ||
		d.Servers[0].Method != domain.LiveMigration || d.Servers[0].State != domain.DrainPending || d.Left != 1 ||
		d.Room != "yes" || d.Servers[0].Room != "yes" {
		t.Errorf("planned: %+v", d)
	}
	if h, n := m.nova(), m.count("drains"); !h.IsEnabled || n != 0 {
		t.Errorf("a dry run left %d drains, and %+v", n, h)
	}
	n := m.post("drain", `{"parallel":3,"server_timeout":"PT5M"}`, 202)
	if n.Drain == nil || n.Drain.State != domain.DrainRunning || n.CordonedBy != "cloudfn" {
		t.Fatalf("got %+v", n)
	}
	if by := n.Drain.RequestedBy; n.Drain.Parallel != 3 || n.Drain.Timeout != "PT5M" || by == nil ||
		by.UserName != "admin" || by.UserID == "" || by.ProjectID == "" {
		t.Errorf("the drain does not show its request: %+v, by %+v", n.Drain, by)
	}
	if m.count("drains where parallel = 3 and server_timeout = '5 minutes' and actor->>'user_name' = 'admin'") != 1 {
		t.Error("the drain is not stored as requested")
	}
	if again := m.post("drain", "", 202); *again.Drain.ID != *n.Drain.ID {
		t.Errorf("a second drain: %+v", again.Drain)
	}
	m.refused("uncordon", "", "cancel that first")
	if h := m.nova(); h.IsEnabled || h.DisabledReason != "cloudfn: drained by admin" {
		t.Errorf("Nova has %+v", h)
	}
	testkit.ForceDown(t, m.host, true) // enables it, too; a new drain of a host that is down is refused
	if again := m.post("drain", "", 202); *again.Drain.ID != *n.Drain.ID {
		t.Errorf("a drain of a host that is drained and down: %+v", again.Drain)
	}
	testkit.ForceDown(t, m.host, false)
	if d := m.post("cancel-drain", "", 202).Drain; d.State != domain.DrainCancelled || *d.ID != *n.Drain.ID {
		t.Errorf("cancelled: %+v", d)
	}
	m.refused("drain", "", "still follows")
	m.post("cancel-drain", "", 202)
	if n := m.post("uncordon", "", 200); !n.Schedulable {
		t.Errorf("got %+v", n)
	}
	m.refused("drain", "", "still follows")
	if n := do(t, m.admin, "GET", "/v1/nodes/"+m.host, 200); n.Drain == nil {
		t.Error("a drain that is not over is not shown")
	}
	m.exec("update drains set due_at = null, ended_at = now()")
	if n := do(t, m.admin, "GET", "/v1/nodes/"+m.host, 200); n.Drain != nil {
		t.Errorf("an old drain of a host that was uncordoned: %+v", n.Drain)
	}
	if n := m.post("cordon", "", 200); n.Drain != nil {
		t.Errorf("an old drain of a host that was cordoned again: %+v", n.Drain)
	}
	m.exec("update nodes set cordoned_at = '2026-01-01'")
	if n := do(t, m.admin, "GET", "/v1/nodes/"+m.host, 200); n.Drain == nil || n.Drain.State != domain.DrainCancelled {
		t.Errorf("the drain of a cordoned host: %+v", n.Drain)
	}
	if n := m.post("uncordon", "", 200); n.Drain != nil {
		t.Errorf("after it was uncordoned: %+v", n.Drain)
	}
	if h := m.nova(); !h.IsEnabled {
		t.Errorf("a drain that was refused has cordoned the host: %+v", h)
	}
	var servers NodeServers
	m.admin.Get(t, "/v1/nodes/"+m.host+"/servers?limit=1").JSON(t, &servers)
	if len(servers.Items) != 1 || servers.Items[0].ID != id || servers.Items[0].Status != "ACTIVE" ||
		servers.Items[0].ProjectID == "" || servers.Next != nil {
		t.Errorf("its servers: %+v", servers)
	}
}

// boot makes a server on the host, with the trait that the isolated hosts require.
func (m maintained) boot(name string) (id string) {
	m.Helper()
	p, facts, admin := testkit.NewProject(m), testkit.Sandbox(m), testkit.Session(m, "leases")
	f := domain.PrivateFlavor{
		ID: uuid.NewString(), BaseID: facts.FlavorID,
		ExtraSpecs: map[string]string{"trait:CUSTOM_CLOUDFN_RESERVABLE": "required"},
	}
	f.Name = "drained-" + f.ID[:8]
	m.Cleanup(func() { _ = admin.DeleteFlavor(context.Background(), f.ID) })
	if err := admin.EnsureFlavor(m.Context(), f); err != nil {
		m.Fatal(err)
	}
	if err := admin.GrantFlavor(m.Context(), f.ID, p.ID); err != nil {
		m.Fatal(err)
	}
	spec := domain.LaunchSpec{FlavorID: f.ID, ImageID: facts.ImageID, NetworkIDs: []string{facts.NetworkID}}
	// Nothing but the other isolated host could take it.
	other := testkit.Session(m, "leases")
	hosts, err := other.ComputeHosts(m.Context())
	if err != nil {
		m.Fatal(err)
	}
	for _, h := range hosts {
		if strings.HasPrefix(h.Name, "compute-4") && h.Name != m.host {
			if err := other.DisableService(m.Context(), h.ServiceID, "a test"); err != nil {
				m.Fatal(err)
			}
			defer func() {
				if err := other.EnableService(m.Context(), h.ServiceID); err != nil {
					m.Error(err)
				}
			}()
		}
	}
	if id, err = p.Session(m).CreateServer(m.Context(), spec, name, "", nil); err != nil {
		m.Fatal(err)
	}
	p.Await(m, id, "ACTIVE")
	return id
}

// TestDrainIsRefused: a node that is down is never drained, and the last one only by force.
func TestDrainIsRefused(t *testing.T) {
	t.Parallel()
	m := maintain(t)
	if _, err := m.conn.Exec(t.Context(), "insert into nodes (name, pool) values ($1, 'reservable')", m.host); err != nil {
		t.Fatal(err)
	}
	// It is the only host of the pool, and other servers may not land on what is in none.
	m.refused("cordon", "", "no other reservable host of zone nova is up and enabled")
	m.refused("drain", "", "with force")
	m.refused("drain?dry_run=true", "", "with force")
	if d := m.post("drain?dry_run=true", `{"force":true}`, 200).Drain; len(d.Servers) != 0 {
		t.Errorf("planned: %+v", d)
	}
	if n := m.post("cordon", `{"force":true}`, 200); n.CordonedBy != "cloudfn" {
		t.Errorf("cordoned: %+v", n)
	}
	m.post("uncordon", "", 200)
	testkit.ForceDown(t, m.host, true)
	const forced = "an admin has forced it down in Nova"
	m.exec("update nodes set status = 'up'") // as watch-nodes has observed it before
	m.refused("drain", `{"force":true}`, "is down ("+forced+")")
	m.refused("drain?dry_run=true", `{"force":true}`, "not evacuated")
	if n := do(t, m.admin, "GET", "/v1/nodes/"+m.host, 200); n.Status != "down" || n.StatusReason != forced {
		t.Errorf("it shows %s: %s", n.Status, n.StatusReason)
	}
	if h, n := m.nova(), m.count("drains"); !h.IsEnabled || n != 0 {
		t.Errorf("what was refused left %d drains, and %+v", n, h)
	}
	for _, body := range []string{
		`{"parallel":0}`, `{"parallel":21}`, `{"server_timeout":"P1M"}`, `{"server_timeout":"10m"}`, `{"speed":1}`,
		`{"server_timeout":"PT9S"}`, `{"server_timeout":"P2D"}`,
	} {
		if a := m.admin.Post(t, "/v1/nodes/"+m.host+"/drain", body); a.Status != 400 {
			t.Errorf("%s: got %d %s", body, a.Status, a.Body)
		}
	}
}

// TestDeleteNode: a dead compute service without servers is deleted in Nova and here; the host must be in no pool.
func TestDeleteNode(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	server, conn := testkit.Start(t, testkit.Env(t, database, nil), Function), testkit.Connect(t, database)
	admin := server.As(testkit.Token(t, "admin"))
	id := uuid.NewString()
	host := "dead-" + id[:8]
	// No process of the sandbox may lose its service, so this one never had a process.
	testkit.NovaSQL(t, fmt.Sprintf("insert into services (host, `binary`, topic, report_count, disabled, forced_down, "+
		"version, uuid, created_at, updated_at, last_seen_up, deleted) values ('%s', 'nova-compute', 'compute', 1, 0, 0, "+
		"(select max(version) from services s), '%s', '2026-01-01', '2026-01-01', '2026-01-01', 0)", host, id))
	t.Cleanup(func() { testkit.NovaSQL(t, "delete from services where uuid = '"+id+"'") })
	if _, err := conn.Exec(t.Context(), "insert into nodes (name, pool) values ($1, 'leaving')", host); err != nil {
		t.Fatal(err)
	}
	path := "/v1/nodes/" + host
	if n := do(t, admin, "GET", path, 200); n.Status != "down" || n.Reservable != "leaving" {
		t.Errorf("got %+v", n)
	}
	do(t, admin, "DELETE", path, 409)
	if _, err := conn.Exec(t.Context(), "update nodes set pool = ''"); err != nil {
		t.Fatal(err)
	}
	do(t, server.As(testkit.BorrowProject(t).Token(t)), "DELETE", path, 403)
	testkit.NovaSQL(t, "update services set last_seen_up = utc_timestamp() where uuid = '"+id+"'")
	do(t, admin, "DELETE", path, 409) // it is up
	testkit.NovaSQL(t, "update services set last_seen_up = '2026-01-01' where uuid = '"+id+"'")
	if a := admin.Do(t, "DELETE", path, ""); a.Status != 204 {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from nodes"); n != 0 {
		t.Error("it is still stored")
	}
	do(t, admin, "GET", path, 404)
	do(t, admin, "DELETE", path, 404)
}

// TestCheckDelete has a row for each reason to keep a node.
func TestCheckDelete(t *testing.T) {
	t.Parallel()
	down := node{
		ComputeHost: domain.ComputeHost{Name: "a"}, isThere: true, stored: domain.Node{Status: domain.NodeDown},
	}
	for name, tc := range map[string]struct {
		change func(*node)
		want   string // "" = it is deleted
	}{
		"down and empty":               {func(*node) {}, ""},
		"never seen, and not in Nova":  {func(n *node) { n.isThere, n.stored.Status = false, domain.NodeUnknown }, ""},
		"suspect":                      {func(n *node) { n.stored.Status = domain.NodeSuspect }, "node a is suspect: only"},
		"up":                           {func(n *node) { n.stored.Status, n.IsUp = "up", true }, "node a is up: only"},
		"up again, and not polled yet": {func(n *node) { n.IsUp = true }, "only a node that is down"},
		"its cell is down":             {func(n *node) { n.CellDown = true }, "the cell of node a does not answer"},
		"a server":                     {func(n *node) { n.Servers = 1 }, "node a has 1 server: move or delete it"},
		"servers":                      {func(n *node) { n.Servers = 2 }, "node a has 2 servers: move or delete them"},
		"reservable":                   {func(n *node) { n.stored.Pool = domain.NodeReservable }, "node a is reservable"},
		"drained": {
			func(n *node) { n.drain = &domain.Drain{Status: domain.DrainRunning} }, "node a is drained: cancel that",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := down
			tc.change(&n)
			err := checkDelete(n)
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

// TestDryRunSaysWhatTheListSays: a drain is refused with the status and the reason that the list shows.
func TestDryRunSaysWhatTheListSays(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		node node
		want domain.NodeStatus
	}{
		"forced down": {
			node{ComputeHost: domain.ComputeHost{ForcedDown: true}, stored: domain.Node{Status: domain.NodeUp}}, "down",
		},
		"down in Nova, and up at the last poll": {node{stored: domain.Node{Status: domain.NodeUp}}, "suspect"},
		"suspect for watch-nodes, and down in Nova": {
			node{stored: domain.Node{Status: domain.NodeSuspect, StatusReason: "no report"}}, "suspect",
		},
		"down for watch-nodes": {
			node{
				ComputeHost: domain.ComputeHost{IsUp: true},
				stored:      domain.Node{Status: domain.NodeDown, StatusReason: "its agent says so"},
			}, "down",
		},
		"never watched": {node{}, "down"},
	} {
		tc.node.Name, tc.node.isThere = "a", true
		shown := show(tc.node, true)
		err := checkDrain(tc.node, nil, true)
		want := "node a is " + string(shown.Status) + " (" + shown.StatusReason + "): servers cannot be moved off it"
		if shown.Status != tc.want || shown.StatusReason == "" || err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: the list shows %s (%s), the drain is refused with %v", name, shown.Status,
				shown.StatusReason, err)
		}
	}
}
