package postgres_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestReturningProjectIsExpected: a project that returns after days, because it was disabled, is not missing in hours
// that were recorded without it; nor is a new one. In hours that nobody recorded, all projects are missing.
func TestReturningProjectIsExpected(t *testing.T) {
	t.Parallel()
	store := postgres.Stats{DB: open(t, testkit.Database(t))}
	see := func(n int, counted bool, ids ...string) {
		t.Helper()
		var projects []domain.Project
		var counts []domain.HourCount
		for _, id := range ids {
			projects = append(projects, domain.Project{ID: id, DomainID: "d1"})
			counts = append(counts, count(id, "d1", n, 1, 1, domain.Sampled))
		}
		err := store.RecordProjects(t.Context(), projects, hour(n-3), hour(n))
		if counted && err == nil {
			err = store.Insert(t.Context(), counts)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	sums := func(first, last int) (running []int) {
		t.Helper()
		got, err := store.Series(t.Context(), domain.View{Scope: domain.ScopeCloud}, hour(first), hour(last))
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range got {
			if running = append(running, -1); h.Running != nil {
				running[len(running)-1] = *h.Running
			}
		}
		return running
	}
	check := func(what string, want, got []int) {
		t.Helper()
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
	}
	see(0, true, "p1", "p2")
	for n := 1; n < 9; n++ {
		see(n, true, "p1") // p2 is disabled
	}
	see(9, false, "p1", "p2", "new")
	check("before they are counted", []int{2, 1, 1, 1, 1, 1, 1, 1, 1, -1}, sums(0, 9))
	see(9, true, "p1", "p2", "new")
	check("counted", []int{2, 1, 1, 1, 1, 1, 1, 1, 1, 3}, sums(0, 9))
	see(10, true, "p1", "new") // and away again
	see(12, true, "p1", "p2", "new")
	check("nobody saw the hour 11", []int{3, 2, -1, 3}, sums(9, 12))
	see(11, true, "p1", "new") // a late one does not take back that p2 may have been there
	check("after a late one", []int{3, 2, -1, 3}, sums(9, 12))
}
