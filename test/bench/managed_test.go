//go:build bench

package bench

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

const managedResources = 10_000

// newManagedCloud is a fake with servers of one project, as texts, by their ids.
func newManagedCloud(t *testing.T, ids []uuid.UUID, servers []string) *fakeCloud {
	t.Helper()
	f := newFakeCloud(t, 0)
	f.role = "member"
	for n, server := range servers {
		f.single[ids[n].String()] = fmt.Appendf(nil, `{"server": %s}`, server)
	}
	for marker, n := "", 0; n < len(servers); n += fakePage {
		end := min(n+fakePage, len(servers))
		f.detail[marker] = fmt.Appendf(nil, `{"servers": [%s]}`, strings.Join(servers[n:end], ","))
		marker = ids[end-1].String()
	}
	f.handle("GET /compute/flavors/detail", func(w http.ResponseWriter, r *http.Request) {
		flavors := `{"flavors": [{"id": "f", "name": "m1.tiny", "vcpus": 1, "ram": 512, "disk": 1}]}`
		if r.URL.Query().Has("marker") {
			flavors = `{"flavors": []}`
		}
		f.send(w, []byte(flavors))
	})
	f.handle("/", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v3/" && r.URL.Path != "/compute/" { // which versions there are, once in a process
			t.Errorf("a call that a round without drift does not need: %s %s", r.Method, r.URL)
		}
		f.answer(w, http.StatusNotFound, []byte("{}"))
	})
	return f
}

// TestManaged counts the calls of reconcile-managed for ten thousand servers of one project without drift, in a process
// of its own with Postgres: none at a tick, and in a scan at most 1 % of one GET for each. A tick takes 1/50 of the
// time of these GETs at most.
func TestManaged(t *testing.T) {
	db := newRig(t)
	connection, rows := uuid.Must(uuid.NewV7()), make([]string, managedResources)
	db.run("insert into managed_projects (project_id, domain_id) values ('p', 'default')")
	db.run(`insert into connections (project_id, id, domain_id, user_id, name, kind, delegation_id, acts_as, actions, usable_by,
  flavors, status, expires_at, trust_expires_at, managed)
values ('p', $1, 'default', 'u', 'managed resources', 'trust', 'a-trust', '{}', '{}', '{}', '[]', 'active',
  now() + interval '1 day', now() + interval '1 day', true)`, connection)
	ids, members := make([]uuid.UUID, managedResources), make([]uuid.UUID, managedResources)
	for n := range rows {
		ids[n], members[n] = uuid.New(), uuid.New()
		rows[n] = fmt.Sprintf(`{"id": "%s", "name": "web-%05d", "status": "ACTIVE", "tenant_id": "p", "user_id": "u", "created": "2026-01-02T03:04:05Z", "updated": "2026-01-02T03:04:05Z", "tags": ["%s", "cloudfn:managed"], "metadata": {}, "flavor": {"original_name": "m1.tiny", "vcpus": 1, "ram": 512, "disk": 1}, "image": {"id": "i"}, "addresses": {}, "OS-EXT-STS:vm_state": "active", "OS-EXT-STS:task_state": null}`,
			members[n], n, members[n])
	}
	db.run(`insert into managed (project_id, id, kind, name, user_id, connection_id, provider, repair, max_revisions, revision,
  observed_revision, request, status, conditions, next_at)
select 'p', id, 'VirtualMachine', 'web-' || lpad((n - 1)::text, 5, '0'), 'u', $2, 'nova', 'manual', 10, 1, 1, '', 'ready', '[]', null
from unnest($1::uuid[]) with ordinality x(id, n)`, ids, connection)
	db.run(`insert into managed_revisions (project_id, managed_id, number, spec, user_id)
select 'p', id, 1, '{"flavor": "m1.tiny", "image": "cirros", "networks": ["private"]}', 'u' from unnest($1::uuid[]) id`, ids)
	db.run(`insert into managed_members (project_id, id, managed_id, ordinal, revision, object_id, status)
select 'p', m, r, 0, 1, m::text, 'ready' from unnest($1::uuid[], $2::uuid[]) x(m, r)`, members, ids)
	cloud := newManagedCloud(t, members, rows)
	p := db.function("reconcile-managed", cloud.URL, map[string]string{
		"MANAGED_PRIVATE_KEY": testkit.ManagedPrivateKey, "OS_PROJECT_NAME": "", "OS_PROJECT_DOMAIN_ID": "",
	})
	const writtenSQL = "select md5(string_agg(ctid::text || xmin, ',' order by id)) from managed"
	reconcile := func(what string) (calls, took float64) {
		n, _ := cloud.count(func() { took = timed(func() { tick(t, p, "reconcile-managed") }) })
		t.Logf("%s: %d resources, %d calls, %s", what, managedResources, n, showMS(took))
		return float64(n), took
	}
	_, first := reconcile("the first scan, which stores the conditions")
	written := testkit.Scalar[string](t, db.Conn, writtenSQL)
	var calls, took, scanCalls, scanned, each []float64
	nova := &gophercloud.ServiceClient{
		ProviderClient: &gophercloud.ProviderClient{TokenID: "a-token"}, Endpoint: cloud.URL + "/compute/",
		Type: "compute",
	}
	for range 3 {
		n, ms := reconcile("a tick without drift")
		calls, took = append(calls, n), append(took, ms)
		each = append(each, timed(func() { // as a controller that reads each resource
			for _, id := range members {
				_, err := servers.Get(context.Background(), nova, id.String()).Extract()
				must(t, err)
			}
		}))
		db.run("update managed_projects set due_at = clock_timestamp(), scan_at = clock_timestamp()")
		n, ms = reconcile("a scan without drift")
		scanCalls, scanned = append(scanCalls, n), append(scanned, ms)
		if n == 0 || n > managedResources/100 {
			t.Errorf("a scan takes %.0f calls", n)
		}
	}
	if testkit.Scalar[string](t, db.Conn, writtenSQL) != written {
		t.Error("a round without drift has written resources")
	}
	if n := median(calls); n > 0 {
		t.Errorf("a tick without drift takes %.0f calls", n)
	}
	if median(took) > median(each)/50 {
		t.Errorf("a tick takes %s, and a GET for each %s", showMS(median(took)), showMS(median(each)))
	}
	name := fmt.Sprintf("reconcile %d resources without drift (fake Nova), ", managedResources)
	compare("15a", name+"calls of a tick : a GET for each", median(calls), managedResources, showCount, atMost(0.01))
	compare("15a", name+"calls of a scan, each 10 minutes : a GET for each", median(scanCalls), managedResources,
		showCount, atMost(0.01))
	compare("15b", name+"time of a tick : a GET for each", median(took), median(each), showMS, atMost(1.0/50))
	compare("15b", name+"time of a scan, each 10 minutes : a GET for each", median(scanned), median(each), showMS,
		shown)
	compare("15b", name+"time of the first scan, which stores all states : a minute", first, ms(time.Minute), showMS,
		atMost(1))
	if n := db.count("select count(*)::int from managed where status <> 'ready'"); n > 0 {
		t.Errorf("%d resources are not ready", n)
	}
}
