package runleases

import (
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestHostOfAnotherAggregate: a host that an aggregate of others isolates does not join the pool, is not given to a
// lease, and degrades the lease that has it. Admins read the name of the aggregate, and the reason ends with it.
func TestHostOfAnotherAggregate(t *testing.T) {
	t.Parallel()
	const want = `host h1 is in the aggregate "gpu", whose property trait:CUSTOM_GPU=required keeps servers of ` +
		`reservations off it: take the host out of that aggregate first`
	const reason = "an aggregate of the cloud keeps servers off a reserved host: the cloud's admin has to take " +
		"the host out of it"
	isolated := func(t *testing.T) *hostWorld {
		t.Helper()
		w := newHostWorld(t)
		w.cloud.aggregates["gpu"] = &domain.Aggregate{ID: 77, Name: "gpu", Metadata: map[string]string{
			"trait:CUSTOM_GPU": "required",
		}}
		w.lease(t, nil)
		w.exec(t, "update allocations set node = 'h1'")
		return w
	}
	shows := func(t *testing.T, w *hostWorld, query, want string) {
		t.Helper()
		if got := testkit.Scalar[string](t, w.rows, query); got != want {
			t.Errorf("%s\n got %s\nwant %s", query, got, want)
		}
	}
	const lease = "select concat_ws(' ', status, degraded, problem->>'detail') from leases"
	const node = "select concat_ws(' ', pool, nullif(reason, '')) from nodes where name = 'h1'"
	t.Run("before it joins", func(t *testing.T) {
		t.Parallel()
		w := isolated(t)
		w.exec(t, "update nodes set pool = 'joining' where name = 'h1'")
		w.cloud.aggregates["gpu"].Hosts = []string{"h1"}
		w.move(t)
		shows(t, w, node, "joining "+want)
		w.cloud.aggregates["gpu"].Hosts = nil
		w.move(t)
		shows(t, w, node, "reservable")
	})
	t.Run("before the start", func(t *testing.T) {
		t.Parallel()
		w := isolated(t)
		w.cloud.aggregates["gpu"].Hosts = []string{"h1"}
		w.becomes(t, domain.LeaseActive)
		if held := strings.Join(w.held(t), " "); held == "h1" || held == "" {
			t.Errorf("the lease has %q", held)
		}
		shows(t, w, lease, "active f")
		shows(t, w, node, "joining "+want)
	})
	t.Run("of other projects", func(t *testing.T) {
		t.Parallel()
		w := isolated(t)
		w.cloud.aggregates["gpu"].Hosts = []string{"h1"}
		w.cloud.aggregates["gpu"].Metadata = map[string]string{"filter_tenant_id2": "another project"}
		w.becomes(t, domain.LeaseActive)
		if held := strings.Join(w.held(t), " "); held == "h1" || held == "" {
			t.Errorf("the lease has %q", held)
		}
		shows(t, w, node, `joining host h1 is in the aggregate "gpu", whose property filter_tenant_id2 keeps servers `+
			`of other projects off it: take the host out of that aggregate first`)
	})
	t.Run("of its project", func(t *testing.T) {
		t.Parallel()
		w := isolated(t)
		own := testkit.Scalar[string](t, w.rows, "select project_id from leases")
		w.cloud.aggregates["gpu"].Hosts = []string{"h1"}
		w.cloud.aggregates["gpu"].Metadata = map[string]string{"filter_tenant_id": "another project," + own}
		w.becomes(t, domain.LeaseActive)
		if held := strings.Join(w.held(t), " "); held != "h1" {
			t.Errorf("the lease has %q", held)
		}
	})
	t.Run("without another host", func(t *testing.T) {
		t.Parallel()
		w := isolated(t)
		w.exec(t, "update nodes set pool = 'leaving' where name <> 'h1'")
		w.cloud.aggregates["gpu"].Hosts = []string{"h1"}
		w.pass(t)
		shows(t, w, lease, "starting f "+reason)
		w.cloud.aggregates["gpu"].Hosts = nil
		w.becomes(t, domain.LeaseActive)
		shows(t, w, lease, "active f")
	})
	t.Run("which is the lease before", func(t *testing.T) {
		t.Parallel()
		w := isolated(t)
		w.becomes(t, domain.LeaseActive)
		w.exec(t, "update nodes set pool = 'leaving' where name <> 'h1'")
		w.lease(t, func(l *domain.Lease) {
			l.StartsAt, l.EndsAt = time.Now().Add(2*time.Hour), time.Now().Add(3*time.Hour)
		})
		w.exec(t, `
update leases set starts_at = case status when 'pending' then now() else starts_at end,
    due_at = case status when 'pending' then now() end`) // a pass is of one lease
		w.pass(t)
		last := lease + " order by created_at desc limit 1"
		shows(t, w, last, "starting f another lease has not returned its hosts yet")
		w.exec(t, "update leases set due_at = now()")
		w.end(t)
		w.becomes(t, domain.LeaseActive)
	})
	t.Run("of an active lease", func(t *testing.T) {
		t.Parallel()
		w := isolated(t)
		w.becomes(t, domain.LeaseActive)
		w.cloud.aggregates["gpu"].Hosts = []string{"h1"}
		w.pass(t)
		shows(t, w, lease, "active t "+reason)
		w.cloud.aggregates["gpu"].Hosts = nil
		w.pass(t)
		shows(t, w, lease, "active f")
	})
}
