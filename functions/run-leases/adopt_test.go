package runleases

import (
	"strings"
	"sync"
	"testing"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLongAdopt gives servers that were made directly in Nova one lease each, whatever replicas work at once, but none
// that has opted out.
func TestLongAdopt(t *testing.T) {
	t.Parallel()
	p, database := testkit.NewProject(t), testkit.Database(t)
	rows := testkit.Pool(t, database)
	plain, out := p.Create(t, "plain"), p.Create(t, "out", optOutTag)
	probe := p.Create(t, "cloudfn-probe-somewhere")
	env := testkit.Env(t, database, map[string]string{
		"LEASES_ADOPT": "P2D", "ALLOWED_PROJECTS": p.ID,
	})
	var first *testkit.Client
	for range 2 { // rounds of new processes
		first = testkit.Start(t, env, Function)
		second := testkit.Start(t, env, Function)
		var all sync.WaitGroup
		for _, app := range []*testkit.Client{first, second} {
			all.Go(func() { app.Tick(t, "run-leases") })
		}
		all.Wait()
		if _, err := rows.Exec(t.Context(), "delete from jobs"); err != nil { // the next round is due
			t.Fatal(err)
		}
	}
	for sql, want := range map[string]int{
		"select count(*)::int from instances":                                                     1,
		"select count(*)::int from instances where lease_id is not null and origin = 'connected'": 1,
		"select count(*)::int from reservations where type = 'instance'":                          1,
		`select count(*)::int from leases where connection_id is null and on_end = 'shelve' and name = 'plain'
		 and ends_at - starts_at = '2 days'`: 1,
	} {
		if got := testkit.Scalar[int](t, rows, sql); got != want {
			t.Errorf("%s: got %d, want %d (servers %s, %s, %s)", sql, got, want, plain, out, probe)
		}
	}
	if id := testkit.Scalar[string](t, rows, "select server_id from instances"); id != plain {
		t.Errorf("the server %s was adopted, want %s", id, plain)
	}
	// It is adopted once, even if its lease has ended and its instance is disconnected.
	if _, err := rows.Exec(t.Context(), `
with d as (update instances set disconnected_at = clock_timestamp(), lease_id = null)
delete from leases`); err != nil {
		t.Fatal(err)
	}
	if _, err := rows.Exec(t.Context(), "delete from jobs"); err != nil {
		t.Fatal(err)
	}
	testkit.Start(t, env, Function).Tick(t, "run-leases")
	if n := testkit.Scalar[int](t, rows, "select count(*)::int from leases"); n != 0 {
		t.Errorf("there are %d leases", n)
	}
}

// TestAdoptEverywhere refuses to adopt the servers of every project.
func TestAdoptEverywhere(t *testing.T) {
	t.Parallel()
	month, err := domain.ParsePeriod("P1M")
	if err != nil {
		t.Fatal(err)
	}
	err = AdoptConfig{Duration: month}.Validate()
	if err == nil || !strings.Contains(err.Error(), "ALLOWED_PROJECTS") {
		t.Errorf("got %v", err)
	}
}
