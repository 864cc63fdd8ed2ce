package reconcilemanaged

import (
	"testing"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLeavesToTheClock: an event that ends while something is due within a minute wakes the clock. It does not for what
// is due later.
func TestLeavesToTheClock(t *testing.T) {
	t.Parallel()
	database, woken := testkit.Database(t), testkit.NewWakes(t)
	app := testkit.Start(t, testkit.Env(t, database, map[string]string{"WAKE_URL": woken.URL}), Function)
	conn := testkit.Pool(t, database)
	due := func(in string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), `
insert into managed_projects (project_id, domain_id, due_at) values ('p', 'd', now() + $1::interval)
on conflict (project_id) do update set due_at = excluded.due_at`, in); err != nil {
			t.Fatal(err)
		}
	}
	tick := func() {
		t.Helper()
		if a := app.Tick(t, "reconcile-managed"); a.Status != 204 {
			t.Errorf("got %d %s", a.Status, a.Body)
		}
	}
	due("10 minutes")
	tick()
	if n := woken.Count("clock"); n != 0 {
		t.Errorf("the clock was woken %d times for what is due in ten minutes", n)
	}
	due("40 seconds")
	woken.After(t, "clock", "an event that leaves something due in 40 s", tick)
}
