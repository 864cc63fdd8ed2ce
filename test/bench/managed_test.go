//go:build bench

package bench

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

const (
	managedResources = 10_000
	managedPage      = 1000
)

// managedCloud is Keystone and Nova as far as a round without drift needs them. It is a fake, for a scale that the
// sandbox cannot have. It counts the calls.
type managedCloud struct {
	*httptest.Server

	pages map[string]string // by marker
	one   map[string]string // by id
	calls atomic.Int64
}

func newManagedCloud(t *testing.T, servers []string) *managedCloud {
	t.Helper()
	c := &managedCloud{pages: map[string]string{}, one: map[string]string{}}
	for _, server := range servers {
		_, id, _ := strings.Cut(server, `"id": "`)
		id, _, _ = strings.Cut(id, `"`)
		c.one[id] = fmt.Sprintf(`{"server": %s}`, server)
	}
	marker := ""
	for ; len(servers) > 0; servers = servers[min(managedPage, len(servers)):] {
		page := servers[:min(managedPage, len(servers))]
		c.pages[marker] = fmt.Sprintf(`{"servers": [%s]}`, strings.Join(page, ","))
		_, id, _ := strings.Cut(page[len(page)-1], `"id": "`)
		marker, _, _ = strings.Cut(id, `"`)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v3/auth/tokens", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Subject-Token", "a-token")
		expires := time.Now().UTC().Add(time.Hour).Format("2006-01-02T15:04:05.000000Z")
		c.send(w, http.StatusCreated, fmt.Sprintf(`{"token": {"expires_at": %q, "user": {"id": "u", "name": "u"}, "project": {"id": "p", "name": "p", "domain": {"id": "default"}}, "roles": [{"name": "member"}], "catalog": [{"type": "compute", "name": "nova", "id": "1", "endpoints": [{"id": "2", "interface": "public", "region_id": "one", "region": "one", "url": "%s/compute"}]}]}}`, expires, c.URL))
	})
	mux.HandleFunc("GET /compute/servers/detail", func(w http.ResponseWriter, r *http.Request) {
		page, ok := c.pages[r.URL.Query().Get("marker")]
		if !ok {
			page = `{"servers": []}`
		}
		c.send(w, http.StatusOK, page)
	})
	mux.HandleFunc("GET /compute/servers/{id}", func(w http.ResponseWriter, r *http.Request) {
		c.send(w, http.StatusOK, c.one[r.PathValue("id")])
	})
	mux.HandleFunc("GET /compute/flavors/detail", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("marker") {
			c.send(w, http.StatusOK, `{"flavors": []}`)
			return
		}
		c.send(w, http.StatusOK, `{"flavors": [{"id": "f", "name": "m1.tiny", "vcpus": 1, "ram": 512, "disk": 1}]}`)
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v3/" && r.URL.Path != "/compute/" { // which versions there are, once in a process
			t.Errorf("a call that a round without drift does not need: %s %s", r.Method, r.URL)
		}
		c.send(w, http.StatusNotFound, "{}")
	})
	c.Server = httptest.NewServer(mux)
	t.Cleanup(c.Close)
	return c
}

func (c *managedCloud) send(w http.ResponseWriter, status int, body string) {
	c.calls.Add(1)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(body))
}

// TestManaged counts the calls of reconcile-managed for ten thousand servers of one project without drift, in a process
// of its own with Postgres: none at a tick, and in a scan at most 1 % of one GET for each. A tick takes 1/50 of the
// time of these GETs at most.
func TestManaged(t *testing.T) {
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	connection, rows := uuid.Must(uuid.NewV7()), make([]string, managedResources)
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	exec("insert into managed_projects (project_id, domain_id) values ('p', 'default')")
	exec(`insert into connections (project_id, id, domain_id, user_id, name, kind, delegation_id, acts_as, actions, usable_by,
  flavors, status, expires_at, trust_expires_at, managed)
values ('p', $1, 'default', 'u', 'managed resources', 'trust', 'a-trust', '{}', '{}', '{}', '[]', 'active',
  now() + interval '1 day', now() + interval '1 day', true)`, connection)
	ids, members := make([]uuid.UUID, managedResources), make([]uuid.UUID, managedResources)
	for n := range rows {
		ids[n], members[n] = uuid.New(), uuid.New()
		rows[n] = fmt.Sprintf(`{"id": "%s", "name": "web-%05d", "status": "ACTIVE", "tenant_id": "p", "user_id": "u", "created": "2026-01-02T03:04:05Z", "updated": "2026-01-02T03:04:05Z", "tags": ["%s", "cloudfn:managed"], "metadata": {}, "flavor": {"original_name": "m1.tiny", "vcpus": 1, "ram": 512, "disk": 1}, "image": {"id": "i"}, "addresses": {}, "OS-EXT-STS:vm_state": "active", "OS-EXT-STS:task_state": null}`,
			members[n], n, members[n])
	}
	exec(`insert into managed (project_id, id, kind, name, user_id, connection_id, provider, repair, max_revisions, revision,
  observed_revision, request, status, conditions, next_at)
select 'p', id, 'VirtualMachine', 'web-' || lpad((n - 1)::text, 5, '0'), 'u', $2, 'nova', 'manual', 10, 1, 1, '', 'ready', '[]', null
from unnest($1::uuid[]) with ordinality x(id, n)`, ids, connection)
	exec(`insert into managed_revisions (project_id, managed_id, number, spec, user_id)
select 'p', id, 1, '{"flavor": "m1.tiny", "image": "cirros", "networks": ["private"]}', 'u' from unnest($1::uuid[]) id`, ids)
	exec(`insert into managed_members (project_id, id, managed_id, ordinal, revision, object_id, status)
select 'p', m, r, 0, 1, m::text, 'ready' from unnest($1::uuid[], $2::uuid[]) x(m, r)`, members, ids)
	cloud := newManagedCloud(t, rows)
	p := testkit.Spawn(t, map[string]string{
		"FUNCTION_TARGET": "reconcile-managed", "DATABASE_URL": database, "HOST": "127.0.0.1",
		"EVENT_KEY": testkit.EventKey, "MANAGED_PRIVATE_KEY": testkit.ManagedPrivateKey,
		"OS_AUTH_URL": cloud.URL + "/v3", "OS_USERNAME": "trustee", "OS_PASSWORD": "secret", "OS_USER_DOMAIN_ID": "default",
	})
	const writtenSQL = "select md5(string_agg(ctid::text || xmin, ',' order by id)) from managed"
	tick := func(what string) (calls, took float64) {
		cloud.calls.Store(0)
		took = timed(func() {
			if a := p.Tick(t, "reconcile-managed"); a.Status/100 != 2 {
				t.Fatalf("got %d %s", a.Status, a.Body)
			}
		})
		calls = float64(cloud.calls.Load())
		t.Logf("%s: %d resources, %.0f calls, %s", what, managedResources, calls, showMS(took))
		return calls, took
	}
	_, first := tick("the first scan, which stores the conditions")
	written := testkit.Scalar[string](t, conn, writtenSQL)
	var calls, took, scanCalls, scanned, each []float64
	nova := &gophercloud.ServiceClient{
		ProviderClient: &gophercloud.ProviderClient{TokenID: "a-token"}, Endpoint: cloud.URL + "/compute/",
		Type: "compute",
	}
	for range 3 {
		n, ms := tick("a tick without drift")
		calls, took = append(calls, n), append(took, ms)
		each = append(each, timed(func() { // as a controller that reads each resource
			for _, id := range members {
				_, err := servers.Get(context.Background(), nova, id.String()).Extract()
				must(t, err)
			}
		}))
		exec("update managed_projects set due_at = clock_timestamp(), scan_at = clock_timestamp()")
		n, ms = tick("a scan without drift")
		scanCalls, scanned = append(scanCalls, n), append(scanned, ms)
		if n == 0 || n > managedResources/100 {
			t.Errorf("a scan takes %.0f calls", n)
		}
	}
	if testkit.Scalar[string](t, conn, writtenSQL) != written {
		t.Error("a round without drift has written resources")
	}
	if n := median(calls); n > 0 {
		t.Errorf("a tick without drift takes %.0f calls", n)
	}
	if median(took) > median(each)/50 {
		t.Errorf("a tick takes %s, and a GET for each %s", showMS(median(took)), showMS(median(each)))
	}
	name := fmt.Sprintf("reconcile %d resources without drift (fake Nova), ", managedResources)
	ratio := func(number, what string, ours, peer float64, show func(float64) string, to target) {
		report(result{
			number: number, name: name + what, ours: show(ours), peer: show(peer), ratio: ours / peer, target: to,
		})
	}
	count := func(n float64) string { return fmt.Sprintf("%.0f", n) }
	ratio("15a", "calls of a tick : a GET for each", median(calls), managedResources, count, atMost(0.01))
	ratio("15a", "calls of a scan, each 10 minutes : a GET for each", median(scanCalls), managedResources, count,
		atMost(0.01))
	ratio("15b", "time of a tick : a GET for each", median(took), median(each), showMS, atMost(1.0/50))
	ratio("15b", "time of a scan, each 10 minutes : a GET for each", median(scanned), median(each), showMS, target{})
	const minute = float64(time.Minute / time.Millisecond)
	ratio("15b", "time of the first scan, which stores all states : a minute", first, minute, showMS, atMost(1))
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from managed where status <> 'ready'"); n > 0 {
		t.Errorf("%d resources are not ready", n)
	}
}
