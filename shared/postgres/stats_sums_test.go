package postgres_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestSumsAreKept: series do not change when the sums of their hours are kept, whatever is written between.
func TestSumsAreKept(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	url := testkit.Database(t)
	store, conn := postgres.Stats{DB: open(t, url)}, testkit.Connect(t, url)
	var projects []domain.Project
	for n := range 8 {
		projects = append(projects, domain.Project{ID: fmt.Sprint("p", n), DomainID: fmt.Sprint("d", n%3)})
	}
	const hours = 30
	series := func() (all [][]domain.HourStat) {
		for _, v := range []domain.View{
			{Scope: domain.ScopeCloud},
			{Scope: domain.ScopeDomain, DomainID: "d1"},
			{Scope: domain.ScopeProject, ProjectID: "p1"},
		} {
			read, err := store.Series(t.Context(), v, hour(0), hour(hours))
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, read)
		}
		settled, err := store.Settled(t.Context(), hour(0), hour(hours))
		if err != nil {
			t.Fatal(err)
		}
		return append(all, settled)
	}
	write := []func() error{
		func() error {
			return store.RecordProjects(t.Context(), projects[random.IntN(3):], hour(0), hour(random.IntN(hours)))
		},
		func() error {
			var counts []domain.HourCount
			for range 60 {
				p, total := projects[random.IntN(len(projects))], random.IntN(9)
				c := count(p.ID, p.DomainID, random.IntN(hours), total/2, total, domain.Sampled)
				c.Settled = random.IntN(4) > 0
				if random.IntN(4) == 0 {
					c.Source, c.Undecided = domain.Rebuilt, []string{"s"}
				}
				counts = append(counts, c)
			}
			return store.Insert(t.Context(), counts)
		},
		func() error {
			c := count("p1", "d1", random.IntN(hours), 3, 4, domain.Rebuilt)
			return store.Refine(t.Context(), []domain.RefinedCount{{HourCount: c, Before: 1}})
		},
		func() error { return store.ExcuseMissing(t.Context(), "p2", hour(0), hour(random.IntN(hours))) },
	}
	for range 40 {
		if err := write[random.IntN(len(write))](); err != nil {
			t.Fatal(err)
		}
		kept := series()
		exec(t, conn, "delete from stats_sums")
		if diff := cmp.Diff(series(), kept); diff != "" {
			t.Fatalf("seed %d: kept sums differ: %s", seed, diff)
		}
		if err := store.Summarize(t.Context(), hour(0), time.Now().Add(time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	err := errors.Join(store.RecordProjects(t.Context(), projects, hour(0), hour(hours)),
		store.Summarize(t.Context(), hour(0), time.Now().Add(time.Hour)))
	if err != nil {
		t.Fatal(err)
	}
	before := series()
	exec(t, conn, "update stats_hourly set running = 0, total = 0")
	exec(t, conn, "update stats_projects set gaps = '{}'")
	if diff := cmp.Diff(before[:2], series()[:2]); diff != "" {
		t.Errorf("settled hours were added up again: %s", diff)
	}
}
