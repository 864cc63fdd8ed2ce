package postgres_test

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/due"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

func claim(t *testing.T, jobs postgres.Jobs, key string, claimFor time.Duration) (domain.Claim, bool) {
	t.Helper()
	claim := must(jobs.Claim(t.Context(), "kind", key, claimFor))(t)
	return claim, claim.Acquired
}

// TestJobs: the life of a job, as every replica that claims it observes it.
func TestJobs(t *testing.T) {
	t.Parallel()
	url := testkit.Database(t)
	jobs := postgres.Jobs{DB: open(t, url)}
	conn := testkit.Connect(t, url)
	for name, tc := range map[string]struct {
		do   func(t *testing.T, key string, id domain.Claim) error
		free bool // whether the job can be claimed then
	}{
		"held": {func(*testing.T, string, domain.Claim) error { return nil }, false},
		"done": {
			func(t *testing.T, key string, id domain.Claim) error { return jobs.Done(t.Context(), "kind", key, id) },
			false,
		},
		"done by others": {func(t *testing.T, key string, _ domain.Claim) error {
			return jobs.Done(t.Context(), "kind", key, domain.NewClaim())
		}, false},
		"failed": {func(t *testing.T, key string, id domain.Claim) error {
			return jobs.Fail(t.Context(), "kind", key, id, errors.New("why"))
		}, true},
		"failed by others": {func(t *testing.T, key string, _ domain.Claim) error {
			return jobs.Fail(t.Context(), "kind", key, domain.NewClaim(), errors.New("why"))
		}, false},
		"another kind's": {func(t *testing.T, key string, id domain.Claim) error {
			return jobs.Fail(t.Context(), "other", key, id, errors.New("why"))
		}, false},
		"forgotten": {
			func(t *testing.T, _ string, _ domain.Claim) error { return jobs.Forget(t.Context(), time.Hour) },
			false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			id, held := claim(t, jobs, name, long)
			if !held {
				t.Fatal("a new job was not to be had")
			}
			noError(t, tc.do(t, name, id))
			next, held := claim(t, jobs, name, long)
			if held != tc.free {
				t.Errorf("it can be claimed: %t", held)
			}
			attempts := testkit.Scalar[int](t, testkit.Pool(t, url), "select attempts from jobs where key = $1", name)
			if want := map[bool]int{false: 1, true: 2}[tc.free]; attempts != want {
				t.Errorf("there were %d attempts", attempts)
			}
			if !held {
				return
			}
			// The one who failed has no say any more.
			if err := jobs.Done(t.Context(), "kind", name, id); err != nil {
				t.Error(err)
			}
			if err := jobs.Done(t.Context(), "kind", name, next); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("a claim expires", func(t *testing.T) {
		dead, _ := claim(t, jobs, "dead", ended)
		id, held := claim(t, jobs, "dead", long)
		if !held || id == dead {
			t.Errorf("held %t", held)
		}
		if err := jobs.Done(t.Context(), "kind", "dead", dead); err != nil {
			t.Error(err)
		}
		if testkit.Scalar[bool](t, conn, "select done_at is not null from jobs where key = 'dead'") {
			t.Error("the dead one ended the job of the living")
		}
	})
	t.Run("old ones go", func(t *testing.T) {
		claim(t, jobs, "old", long)
		exec(t, conn, "update jobs set created_at = created_at - interval '10 days' where key = 'old'")
		noError(t, jobs.Forget(t.Context(), 9*24*time.Hour))
		wantValue(t, conn, 1, "%d of two are left", "select count(*)::int from jobs where key in ('old', 'dead')")
	})
}

// TestClaimJobConcurrently: one replica claims a new job, and one a job whose claim has expired, however many claim at
// once.
func TestClaimJobConcurrently(t *testing.T) {
	t.Parallel()
	jobs := postgres.Jobs{DB: open(t, testkit.Database(t))}
	for _, prepare := range []func(key string){func(string) {}, func(key string) { claim(t, jobs, key, ended) }} {
		for range 10 {
			key := uuid.NewString()
			prepare(key)
			var mu sync.Mutex
			n := 0
			concurrently(8, func(int) {
				claim, err := jobs.Claim(t.Context(), "kind", key, long)
				if err != nil {
					t.Error(err)
				}
				if claim.Acquired {
					mu.Lock()
					n++
					mu.Unlock()
				}
			})
			if n != 1 {
				t.Errorf("%d copies got it", n)
			}
		}
	}
}

// TestPeriodicJobs: a job that is registered is due now, and when its last run says. One that a setting has switched
// off has no row, and jobs that are not periodic stay as they are.
func TestPeriodicJobs(t *testing.T) {
	t.Parallel()
	url := testkit.Database(t)
	ctx, jobs, conn := t.Context(), postgres.Jobs{DB: open(t, url)}, testkit.Connect(t, url)
	register := func(keys ...string) {
		t.Helper()
		noError(t, jobs.Register(ctx, "kind", keys))
	}
	wantDue := func(what string, want ...string) {
		t.Helper()
		got, err := jobs.ListDue(ctx, "kind")
		slices.Sort(got)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: due are %v, want %v: %v", what, got, want, err)
		}
	}
	// dueIn is when a job is due, by the database's clock.
	const dueInSQL = "select (due_at - clock_timestamp())::interval from jobs where key = $1"
	claim(t, jobs, "2026-01-02T03:00:00Z", long) // an hour's
	register("poll", "retire")
	wantDue("new", "poll", "retire")
	first, err := jobs.ClaimDue(ctx, "kind", "retire", time.Minute)
	if err != nil || !first.Acquired {
		t.Fatal(first, err)
	}
	wantDue("claimed", "poll")
	if second, err := jobs.ClaimDue(ctx, "kind", "retire", time.Minute); err != nil || second.Acquired {
		t.Errorf("it is claimed twice: %v", err)
	}
	other := domain.NewClaim()
	noError(t, jobs.Finish(ctx, "kind", "retire", other, due.Next{Never: true}, nil))
	wantDue("finished by another", "poll")
	noError(t, jobs.Finish(ctx, "kind", "retire", first, due.Next{In: time.Hour}, errors.New("why")))
	in := testkit.Scalar[time.Duration](t, conn, dueInSQL, "retire")
	reason := testkit.Scalar[string](t, conn, "select error from jobs where key = 'retire'")
	if in < 59*time.Minute || in > time.Hour || reason != "why" {
		t.Errorf("it is due in %s, and failed with %q", in, reason)
	}
	if again, err := jobs.ClaimDue(ctx, "kind", "retire", time.Minute); err != nil || again.Acquired {
		t.Errorf("it is claimed before it is due: %v", err)
	}
	register("poll", "retire")
	wantDue("registered again", "poll")
	noError(t, jobs.Schedule(ctx, "kind", "poll", due.Next{Second: 17}))
	in = testkit.Scalar[time.Duration](t, conn, dueInSQL, "poll")
	second := testkit.Scalar[float64](t, conn,
		"select extract(second from due_at)::float8 from jobs where key = 'poll'")
	if in <= 0 || in > time.Minute || second != 17 {
		t.Errorf("it is due in %s, at second %v", in, second)
	}
	noError(t, jobs.Schedule(ctx, "kind", "poll", due.Next{Never: true}))
	wantDue("with nothing to follow")
	register("retire")
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from jobs where key = 'poll'"); n != 0 {
		t.Error("a job that is switched off has a row")
	}
	exec(t, conn, "update jobs set created_at = created_at - interval '100 days'")
	noError(t, jobs.Forget(ctx, 24*time.Hour))
	wantValue(t, conn, "retire", "left are %s", "select string_agg(key, ',') from jobs")
}
