package nodes

import (
	"fmt"
	"slices"
	"strings"
	"testing"

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
