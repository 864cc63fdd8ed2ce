package postgres_test

import (
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestCountConcurrently: replicas insert the hours of the same projects at once, as at the turn of an hour, without a
// deadlock.
func TestCountConcurrently(t *testing.T) {
	t.Parallel()
	url := testkit.Database(t)
	store, conn := postgres.Stats{DB: open(t, url)}, testkit.Connect(t, url)
	first, second := count("p1", "d1", 0, 1, 1, domain.Sampled), count("p2", "d1", 0, 1, 1, domain.Sampled)
	first.Undecided, second.Undecided = []string{"a"}, []string{"b"}
	refined := []domain.RefinedCount{{HourCount: second, Before: 1}, {HourCount: first, Before: 1}}
	for name, tc := range map[string]struct {
		other string // what the other replica writes of a project
		write func() error
	}{
		"insert": {
			`insert into stats_hourly (project_id, hour, domain_id, running, total, by_status, source) values ($1, $2, 'd1', 1,
  1, '{}', 'sampled')`,
			func() error { return store.Insert(t.Context(), []domain.HourCount{second, first}) },
		},
		"refine": {
			"update stats_hourly set uncertain = 0 where project_id = $1 and hour = $2",
			func() error { return store.Refine(t.Context(), refined) },
		},
	} {
		if _, err := conn.Exec(t.Context(), "delete from stats_hourly"); err != nil {
			t.Fatal(err)
		}
		if name == "refine" {
			if err := store.Insert(t.Context(), []domain.HourCount{first, second}); err != nil {
				t.Fatal(err)
			}
		}
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		other := func(project string) {
			t.Helper()
			if _, err := tx.Exec(t.Context(), tc.other, project, hour(0)); err != nil {
				t.Errorf("%s: the other replica: %v", name, err)
			}
		}
		other("p1")
		written := make(chan error, 1)
		go func() { written <- tc.write() }()
		testkit.Eventually(t, 4*time.Second, "it waits", func() bool {
			return testkit.Scalar[bool](t, testkit.Pool(t, url),
				"select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')")
		})
		other("p2")
		_ = tx.Commit(t.Context())
		if err := <-written; err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
