package nodes

import (
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// do sends a request, and checks the status of the answer. It returns the node that was answered.
func do(t *testing.T, c *testkit.Client, method, path string, status int) (n Node) {
	t.Helper()
	a := c.Do(t, method, path, "")
	if a.Status != status {
		t.Fatalf("%s %s: got %d %s, want %d", method, path, a.Status, a.Body, status)
	}
	if status < 300 {
		a.JSON(t, &n)
	}
	return n
}

// TestReservable makes a host of the sandbox reservable and opens it again, as far as this function does it: the rest
// is run-leases'.
func TestReservable(t *testing.T) {
	t.Parallel()
	database, host := testkit.Database(t), testkit.ReservableHosts(t)[0]
	server, conn := testkit.Start(t, testkit.Env(t, database, nil), Function), testkit.Connect(t, database)
	admin := server.As(testkit.Token(t, "admin"))
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	path := "/v1/nodes/" + host
	shown := func(status int, method, path, reservable string) {
		t.Helper()
		if n := do(t, admin, method, path, status); n.Name != host || n.Reservable != reservable {
			t.Errorf("%s %s: got %+v, want %s", method, path, n, reservable)
		}
	}
	shown(200, "GET", path, "no")
	shown(202, "POST", path+"/unreservable", "no")
	setFree := testkit.Isolate(t, host)
	p := testkit.BorrowProject(t)
	p.Grant(t, p.UserID, "admin")
	testkit.RequireTrait(t, p.PrivateFlavor(t), "CUSTOM_CLOUDFN_RESERVABLE") // it cannot be leased
	if a := server.As(p.Token(t)).Post(t, path+"/reservable", ""); a.Status != 409 ||
		!strings.Contains(string(a.Body), "whose property trait:CUSTOM_CLOUDFN_RESERVABLE=required keeps") {
		t.Errorf("a host that others isolate: got %d %s", a.Status, a.Body)
	}
	shown(200, "GET", path, "no")
	setFree()
	shown(202, "POST", path+"/reservable", "joining")
	shown(202, "POST", path+"/reservable", "joining")
	var vcpus, ram int
	var provider string
	if err := conn.QueryRow(t.Context(), "select vcpus, ram_mb, provider_id from nodes where name = $1", host).
		Scan(&vcpus, &ram, &provider); err != nil || vcpus == 0 || ram == 0 || provider == "" {
		t.Errorf("stored: %d %d %q %v", vcpus, ram, provider, err)
	}
	exec("update nodes set pool = 'reservable'")
	exec("insert into isolation (region, result) values ('RegionOne', 'proven')")
	if n := do(t, admin, "GET", path, 200); n.Reservable != "yes" || n.Isolation != "proven" ||
		n.Region != "RegionOne" {
		t.Errorf("got %+v", n)
	}
	exec(`insert into leases (project_id, id, domain_id, user_id, name, status, starts_at, ends_at, on_end)
		values ('p', '019b7c5e-7f60-7a88-b14f-6d0e5a4c3e55', 'd', 'u', 'l', 'pending', now() + interval '1 day',
		        now() + interval '2 days', 'shelve')`)
	exec(`insert into reservations (project_id, id, lease_id, position, type)
		values ('p', '3f8fad5b-d9cb-469f-a165-70867728950e', '019b7c5e-7f60-7a88-b14f-6d0e5a4c3e55', 0, 'host')`)
	exec(`insert into allocations (project_id, reservation_id, node, during)
		values ('p', '3f8fad5b-d9cb-469f-a165-70867728950e', $1, tstzrange(now() + interval '1 day', now() + interval '2 days'))`,
		host)
	a := admin.Post(t, path+"/unreservable", "")
	if a.Status != 409 || !strings.Contains(string(a.Body), "a reservation has host ") {
		t.Errorf("a reserved host: got %d %s", a.Status, a.Body)
	}
	exec("delete from allocations")
	shown(202, "POST", path+"/unreservable", "leaving")
	shown(202, "POST", path+"/unreservable", "leaving")
	if n := do(t, admin, "GET", path, 200); n.Isolation != "proven" || n.TestedAt.IsZero() {
		t.Errorf("a host that leaves shows %+v", n)
	}
	shown(202, "POST", path+"/reservable", "joining")
	exec("update nodes set pool = ''")
	if n := do(t, admin, "GET", path, 200); n.Isolation != "unknown" || n.IsolationText != "" || !n.TestedAt.IsZero() {
		t.Errorf("an ordinary host shows the test of others: %+v", n)
	}
	exec("delete from nodes")
	shown(202, "POST", path+"/unreservable", "no")
}

func TestLongHostsWithServers(t *testing.T) {
	t.Parallel()
	p, cloud := testkit.BorrowProject(t), testkit.Session(t, "admin")
	server := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function)
	admin := server.As(testkit.Token(t, "admin"))
	made := p.Boot(t, "there", 1)[0]
	for _, name := range []string{"compute-1", "compute-2"} {
		servers, err := cloud.HostServers(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(servers, func(s domain.Server) bool { return s.ID == made.ID }) {
			continue
		}
		if a := admin.Post(t, "/v1/nodes/"+name+"/reservable", ""); a.Status != 409 ||
			!strings.Contains(string(a.Body), ": move or delete ") {
			t.Errorf("got %d %s", a.Status, a.Body)
		}
		n := do(t, admin, "GET", "/v1/nodes/"+name, 200)
		if n.Servers < 1 || n.Used.VCPUs < 1 || n.Capacity.VCPUs <= n.Used.VCPUs || n.Status != "up" ||
			!n.Schedulable || n.Zone != "nova" || n.HeartbeatAt.IsZero() || n.Reservable != "no" ||
			n.Isolation != "unknown" {
			t.Errorf("got %+v", n)
		}
		return
	}
	t.Error("the server is on no host")
}

// TestListNodes: pages by name; a reservable host that Nova has no more is still shown, and can leave.
func TestListNodes(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	server, conn := testkit.Start(t, testkit.Env(t, database, nil), Function), testkit.Connect(t, database)
	admin := server.As(testkit.Token(t, "admin"))
	const gone = "gone.example.com"
	if _, err := conn.Exec(t.Context(), "insert into nodes (name, pool) values ($1, 'reservable')", gone); err != nil {
		t.Fatal(err)
	}
	var names []string
	for next := "/v1/nodes?limit=2"; next != ""; {
		var page NodePage
		admin.Get(t, next).JSON(t, &page)
		for _, n := range page.Items {
			names = append(names, n.Name)
		}
		if next = ""; page.Next != nil {
			next = *page.Next
		}
	}
	if !slices.IsSorted(names) || !slices.Contains(names, "compute-1") || !slices.Contains(names, gone) ||
		len(slices.Compact(slices.Clone(names))) != len(names) {
		t.Errorf("listed %v", names)
	}
	if n := do(t, admin, "GET", "/v1/nodes/"+gone, 200); n.Status != "down" || n.Schedulable || n.Reservable != "yes" {
		t.Errorf("got %+v", n)
	}
	if n := do(t, admin, "POST", "/v1/nodes/"+gone+"/unreservable", 202); n.Reservable != "leaving" {
		t.Errorf("got %+v", n)
	}
}

func TestWhoSeesHosts(t *testing.T) {
	t.Parallel()
	server := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function)
	admin, member := server.As(testkit.Token(t, "admin")), server.As(testkit.BorrowProject(t).Token(t))
	for _, r := range []struct {
		client       *testkit.Client
		method, path string
		status       int
	}{
		{member, "GET", "/v1/nodes", 403},
		{member, "GET", "/v1/nodes/compute-1", 403},
		{member, "GET", "/v1/nodes/no.such.host", 403},
		{member, "POST", "/v1/nodes/compute-1/reservable", 403},
		{member, "POST", "/v1/nodes/compute-1/unreservable", 403},
		{member, "POST", "/v1/nodes/compute-1/cordon", 403},
		{member, "POST", "/v1/nodes/compute-1/uncordon", 403},
		{member, "POST", "/v1/nodes/compute-1/drain", 403},
		{member, "POST", "/v1/nodes/compute-1/cancel-drain", 403},
		{server.As(""), "GET", "/v1/nodes", 401},
		{admin, "GET", "/v1/nodes/no.such.host", 404},
		{admin, "POST", "/v1/nodes/no.such.host/reservable", 404},
		{admin, "POST", "/v1/nodes/no.such.host/unreservable", 404},
		{admin, "GET", "/v1/nodes/" + strings.Repeat("x", 300), 404},
		{admin, "GET", "/v1/nodes?limit=0", 400},
		{admin, "PUT", "/v1/nodes/compute-1", 405},
	} {
		t.Run(fmt.Sprintf("%s %.40s", r.method, r.path), func(t *testing.T) {
			a := r.client.Do(t, r.method, r.path, "")
			if a.Status != r.status {
				t.Errorf("got %d %s, want %d", a.Status, a.Body, r.status)
			}
			if text := strings.ReplaceAll(string(a.Body), r.path, ""); strings.Contains(text, "compute-") {
				t.Errorf("it names a host: %s", text)
			}
			if text := string(a.Body); a.Status == 403 && (strings.Contains(text, "os_compute_api") ||
				!strings.Contains(text, "\"nodes are for the cloud's admins\"")) {
				t.Errorf("it does not say for whom nodes are: %s", text)
			}
		})
	}
}

// TestSlowReportsLeaveSlots: an address without any credential that occupies requests is refused before a pod is full.
func TestSlowReportsLeaveSlots(t *testing.T) {
	t.Parallel()
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), map[string]string{
		"FUNCTION_TARGET": "nodes", "TRUSTED_PROXIES": "127.0.0.1",
	}), Function)
	server, err := url.Parse(app.URL)
	if err != nil {
		t.Fatal(err)
	}
	const path, slow = "/v1/nodes/x/heartbeat", "192.0.2.1"
	occupy := func() {
		t.Helper()
		conn, err := net.Dial("tcp", server.Host)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"+
			"X-Forwarded-For: %s\r\nContent-Length: 1000\r\n\r\n{", path, slow); err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = io.Copy(io.Discard, conn) }()
	}
	for range Function.Scale.PerSource() {
		occupy()
	}
	report := func(address string) testkit.Answer {
		return app.Post(t, path, `{"status":"up"}`, "X-Forwarded-For", address)
	}
	testkit.Eventually(t, 5*time.Second, "the address has too many requests in flight", func() bool {
		if report(slow).Status == 429 {
			return true
		}
		occupy() // the report may have taken the place of one
		return false
	})
	if a := report("192.0.2.2"); a.Status != 401 {
		t.Errorf("another address: got %d %s", a.Status, a.Body)
	}
}

// TestLongSelfTest: only idle reservable hosts are tested. compute-1 is reservable here and not in Nova, so the cloud
// places the test's server, as it does without the setting; nova.conf's line is named, and nothing is left.
func TestLongSelfTest(t *testing.T) {
	t.Parallel()
	database, host := testkit.Database(t), testkit.ReservableHosts(t)[0]
	server, conn := testkit.Start(t, testkit.Env(t, database, nil), Function), testkit.Connect(t, database)
	admin := server.As(testkit.Token(t, "admin"))
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	path := "/v1/nodes/" + host
	do(t, server.As(testkit.BorrowProject(t).Token(t)), "POST", path+"/self-test", 403)
	do(t, admin, "POST", "/v1/nodes/no.such.host/self-test", 404)
	do(t, admin, "POST", path+"/self-test", 409)
	do(t, admin, "POST", path+"/reservable", 202)
	do(t, admin, "POST", path+"/self-test", 409)
	exec("update nodes set pool = 'reservable'")
	exec(`insert into leases (project_id, id, domain_id, user_id, name, status, starts_at, ends_at, on_end)
		values ('p', '019b7c5e-7f60-7a88-b14f-6d0e5a4c3e55', 'd', 'u', 'l', 'active', now(), now() + interval '2 days',
		        'shelve')`)
	exec(`insert into reservations (project_id, id, lease_id, position, type)
		values ('p', '3f8fad5b-d9cb-469f-a165-70867728950e', '019b7c5e-7f60-7a88-b14f-6d0e5a4c3e55', 0, 'host')`)
	exec(`insert into allocations (project_id, reservation_id, node, during)
		values ('p', '3f8fad5b-d9cb-469f-a165-70867728950e', $1, tstzrange(now(), now() + interval '2 days'))`, host)
	if a := admin.Post(t, path+"/self-test", ""); a.Status != 409 || !strings.Contains(string(a.Body), "has host") {
		t.Errorf("a host of a lease: %d %s", a.Status, a.Body)
	}
	if n := do(t, admin, "GET", path, 200); n.Lease == nil || n.Lease.ProjectID != "p" ||
		n.Lease.ID.String() != "019b7c5e-7f60-7a88-b14f-6d0e5a4c3e55" || !n.Lease.End.After(time.Now()) {
		t.Errorf("its lease is %+v", n.Lease)
	}
	exec("update allocations set during = tstzrange(now() + interval '1 day', now() + interval '2 days')")
	testkit.Isolate(t, host)
	before := testkit.Scalar[time.Time](t, conn, "select clock_timestamp()")
	if n := do(t, admin, "POST", path+"/self-test", 200); n.Isolation != domain.IsolationProven || n.Lease == nil ||
		!strings.Contains(n.IsolationText, "was refused on "+host) || !n.TestedAt.After(before) {
		t.Errorf("of an isolated host the test found %+v", n)
	}
	exec("insert into nodes (name, pool) values ('compute-1', 'reservable')")
	n := do(t, admin, "POST", "/v1/nodes/compute-1/self-test", 200)
	if n.Isolation != domain.IsolationUnproven || !n.TestedAt.After(before) || n.Lease != nil ||
		!strings.Contains(n.IsolationText, "enable_isolated_aggregate_filtering = true") {
		t.Errorf("the test found %+v", n)
	}
	if shown := do(t, admin, "GET", path, 200); shown.Isolation != n.Isolation || !shown.TestedAt.Equal(n.TestedAt) {
		t.Errorf("another host shows %+v", shown)
	}
	for _, name := range []string{host, "compute-1"} {
		servers, err := testkit.Session(t, "admin").HostServers(t.Context(), name)
		if err != nil || slices.ContainsFunc(servers, func(v domain.Server) bool {
			return v.Name == domain.ProbePrefix+name
		}) {
			t.Errorf("the test leaves %+v %v", servers, err)
		}
	}
	exec("delete from nodes")
}
