package nodes

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

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
