package runleases

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/leases"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// shown is all that tenants read of leases.
func (w *hostWorld) shown(t *testing.T) string {
	t.Helper()
	return testkit.Scalar[string](t, w.rows, `
select coalesce(string_agg(shown, E'\n'), '') from (
    select problem::text from leases union all select problem::text from reservations union all
    select data::text from events) as t (shown)`)
}

// names are what tenants must not read.
var names = regexp.MustCompile(`\bh[0-9]\b|secret|Host not found|cloudfn-(lease|reservable)|CUSTOM_|gpu`)

// TestReasonsNameNoHosts: whichever call of the admin's account fails in a lease's life, and with servers and
// aggregates of others on its hosts, its owner reads why, without names of hosts and aggregates and Nova's words.
func TestReasonsNameNoHosts(t *testing.T) {
	t.Parallel()
	w := newHostWorld(t)
	check := func(when string) {
		t.Helper()
		if found := names.FindAllString(w.shown(t), -1); len(found) > 0 {
			t.Errorf("%s: tenants read %q in\n%s", when, found, w.shown(t))
		}
	}
	failed := map[string]bool{}
	pass := func(call string) {
		for w.cloud.fails = call; w.cloud.fails != ""; w.cloud.fails = "" {
			w.pass(t)
		}
		shown := w.shown(t)
		if strings.Contains(shown, "service account") || strings.Contains(shown, "cannot be ended") {
			failed[call] = true
		}
		check(call)
		w.exec(t, "delete from events")
	}
	life := func(call string) {
		r := w.lease(t, nil)
		pass(call)
		w.becomes(t, domain.LeaseActive)
		id, host := w.cloud.launch(r.Flavors[0].ID)
		w.cloud.aggregates[leases.AggregateName(r.ID)].Hosts = nil
		clear(w.cloud.flavors)
		pass(call)
		w.pass(t)
		w.down(t, host, true) // it is replaced, and comes back
		w.pass(t)
		w.down(t, host, false)
		pass(call)
		delete(w.cloud.servers, id)
		pass(call)
		w.pass(t)
		_, _ = w.cloud.launch(r.Flavors[0].ID)
		w.end(t)
		pass(call)
		w.pass(t)
		pass(call)
		w.becomes(t, domain.LeaseEnded)
		w.clean(t)
		w.exec(t, "delete from allocations") // they book the hosts until the lease was to end
	}
	w.dies = &crasher{}
	life("none")
	calls := map[string]bool{}
	for _, call := range w.cloudCalls() {
		call, _, _ = strings.Cut(call, " ")
		calls[call] = true
	}
	for _, call := range slices.Sorted(maps.Keys(calls)) {
		life(call)
	}
	if len(calls) < 15 || len(failed) < len(calls)-2 {
		t.Errorf("of %d calls %d failed: %v", len(calls), len(failed), failed)
	}

	w.cloud.servers["stranger"] = &domain.Server{ID: "stranger", ProjectID: "other", Status: "ACTIVE"}
	w.cloud.aggregates["gpu"] = &domain.Aggregate{ID: 77, Name: "gpu", Metadata: map[string]string{
		"trait:CUSTOM_GPU": "required",
	}}
	w.lease(t, nil)
	w.exec(t, "update nodes set pool = 'leaving' where name not in (select node from allocations where released_at is null)")
	w.cloud.servers["stranger"].Host = testkit.Scalar[string](t, w.rows, "select node from allocations where released_at is null")
	w.pass(t)
	check("a server of others")
	w.cloud.aggregates["gpu"].Hosts = []string{w.cloud.servers["stranger"].Host}
	w.pass(t)
	check("an aggregate of others")
	if got := w.shown(t); !strings.Contains(got, "the cloud's admin has to take the host out of it") {
		t.Errorf("tenants read %s", got)
	}
}

// TestHostIsNotReturned: a lease waits for the host that another one has not returned, takes another one after three
// minutes, and is in error at last if no other is free.
func TestHostIsNotReturned(t *testing.T) {
	t.Parallel()
	for name, hasOther := range map[string]bool{"with another host": true, "without one": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newHostWorld(t)
			first := w.lease(t, nil)
			w.becomes(t, domain.LeaseActive)
			held := w.held(t)[0]
			w.cloud.servers["building"] = &domain.Server{
				ID: "building", ProjectID: tenant, Status: "BUILD", CreatedAt: time.Now(),
				Flavor: domain.FlavorRef{Name: first.Flavors[0].Name},
			}
			w.end(t)
			w.pass(t)
			w.exec(t, `
update allocations set during = tstzrange(now() - interval '1 hour', now() - interval '10 minutes')`)
			w.exec(t, "update leases set due_at = null")
			second := w.lease(t, nil)
			w.exec(t, "update allocations set node = $1 where reservation_id = $2", held, second.ID)
			if !hasOther {
				w.exec(t, "update nodes set pool = 'leaving' where name <> $1", held)
			}
			status := func() string {
				return testkit.Scalar[string](t, w.rows, `
select concat_ws(' ', status, start_result, problem->>'code', problem->>'detail') from leases
order by created_at desc limit 1`)
			}
			const waits = "starting  conflict another lease has not returned its hosts yet"
			for _, w.after = range []time.Duration{0, 2 * time.Minute} {
				if w.pass(t); status() != waits {
					t.Errorf("after %s it is %s", w.after, status())
				}
			}
			for w.after = 4 * time.Minute; w.after < 12*time.Minute; w.after += time.Minute {
				w.pass(t)
			}
			want := "active done"
			if !hasOther {
				want = "error failed conflict another lease has not returned its hosts yet"
			}
			if got := status(); got != want {
				t.Errorf("it is %q, want %q", got, want)
			}
			delete(w.cloud.servers, "building")
			w.exec(t, "update nodes set pool = 'reservable'")
			w.exec(t, "update leases set due_at = now()")
			w.after = 0
			w.pass(t)
			w.becomes(t, domain.LeaseActive)
		})
	}
}
