package postgres_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func hour(n int) time.Time { return noon.Add(time.Duration(n) * time.Hour) }

func count(project, domainID string, h, running, total int, source domain.Source) domain.HourCount {
	return domain.HourCount{
		ProjectID: project, DomainID: domainID, Hour: hour(h), Running: running, Total: total, Source: source,
		ByStatus: map[string]int{"ACTIVE": running, "SHUTOFF": total - running},
	}
}

// entry is an hour of a series; running < 0 is a missing one.
func entry(h, running, total int, source domain.Source) domain.HourStat {
	s := domain.HourStat{Hour: hour(h), ByStatus: map[string]int{}, Source: source}
	if running >= 0 {
		s.Running, s.Total, s.ByStatus = &running, &total, map[string]int{"ACTIVE": running, "SHUTOFF": total - running}
	}
	return s
}

func TestTheFirstCountStays(t *testing.T) {
	t.Parallel()
	url := testkit.Database(t)
	store := postgres.Stats{DB: open(t, url)}
	first, second := count("p1", "d1", 0, 2, 3, domain.Sampled), count("p1", "d1", 0, 9, 9, domain.Rebuilt)
	for _, counts := range [][]domain.HourCount{nil, {first}, {second, count("p1", "d1", 1, 1, 1, domain.Sampled)}, {{ProjectID: "p2", DomainID: "d1", Hour: hour(0), Source: domain.Sampled}}} {
		if err := store.Insert(t.Context(), counts); err != nil {
			t.Fatal(err)
		}
	}
	got := testkit.Pairs(t, testkit.Pool(t, url), "select project_id || ' ' || to_char(hour at time zone 'UTC', 'HH24') || ' ' || source || ' ' || by_status::text, running from stats_hourly")
	want := map[string]int{
		`p1 12 sampled {"ACTIVE": 2, "SHUTOFF": 1}`: 2, `p1 13 sampled {"ACTIVE": 1, "SHUTOFF": 0}`: 1, `p2 12 sampled {}`: 0,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	known, err := store.Known(t.Context(), hour(0))
	if diff := cmp.Diff(map[string]map[time.Time]bool{"p1": {hour(0): true, hour(1): true}, "p2": {hour(0): true}}, known); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	if known, err = store.Known(t.Context(), hour(1)); err != nil || len(known) != 1 || len(known["p1"]) != 1 {
		t.Errorf("got %v %v", known, err)
	}
}

// TestSenselessCounts are refused as a whole.
func TestSenselessCounts(t *testing.T) {
	t.Parallel()
	store := postgres.Stats{DB: open(t, testkit.Database(t))}
	half := count("p1", "d1", 0, 1, 1, domain.Sampled)
	half.Hour = half.Hour.Add(30 * time.Minute)
	for name, bad := range map[string]domain.HourCount{
		"more run than there are": count("p1", "d1", 0, 2, 1, domain.Sampled), "fewer than none": count("p1", "d1", 0, -1, 1, domain.Sampled),
		"an unknown source": count("p1", "d1", 0, 1, 1, "guessed"), "half past": half,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := store.Insert(t.Context(), []domain.HourCount{count("good-"+name, "d1", 0, 1, 1, domain.Sampled), bad}); apperr.CodeOf(err) != apperr.Internal {
				t.Errorf("got %v", err)
			}
			if known, err := store.Known(t.Context(), hour(-100)); err != nil || known["good-"+name] != nil {
				t.Errorf("got %v %v", known, err)
			}
		})
	}
}

// TestSeries sums projects, and knows nothing of an hour at which one of them is missing.
func TestSeries(t *testing.T) {
	t.Parallel()
	store := postgres.Stats{DB: open(t, testkit.Database(t))}
	counts := []domain.HourCount{
		count("p1", "d1", 0, 1, 2, domain.Sampled), count("p2", "d1", 0, 3, 3, domain.Sampled), count("p3", "d2", 0, 5, 6, domain.Sampled),
		count("p1", "d1", 1, 1, 2, domain.Sampled), // p2 is missing at 1
		count("p3", "d2", 1, 5, 5, domain.Rebuilt),
		count("p1", "d1", 2, 0, 0, domain.Sampled), count("p3", "d2", 2, 1, 1, domain.Sampled), // p2 is gone at 2
	}
	if err := store.Insert(t.Context(), counts); err != nil {
		t.Fatal(err)
	}
	see := func(first, last int, ids ...string) {
		t.Helper()
		var projects []domain.Project
		for _, id := range ids {
			projects = append(projects, domain.Project{ID: id, DomainID: map[string]string{"p1": "d1", "p2": "d1", "p3": "d2"}[id]})
		}
		if err := store.See(t.Context(), projects, hour(first), hour(last)); err != nil {
			t.Fatal(err)
		}
	}
	see(0, 0, "p1", "p2", "p3")
	see(0, 1, "p1", "p2")
	see(1, 2, "p1", "p3")
	see(0, 1, "p1") // a late one does not take back what is known
	for name, tc := range map[string]struct {
		view        domain.View
		first, last int
		want        []domain.HourStat
	}{
		"a project": {
			domain.View{Scope: domain.ScopeProject, ProjectID: "p1"},
			0, 2,
			[]domain.HourStat{entry(0, 1, 2, domain.Sampled), entry(1, 1, 2, domain.Sampled), entry(2, 0, 0, domain.Sampled)},
		},
		"a project that is gone": {
			domain.View{Scope: domain.ScopeProject, ProjectID: "p2"},
			0, 2,
			[]domain.HourStat{entry(0, 3, 3, domain.Sampled), entry(1, -1, 0, domain.Missing), entry(2, -1, 0, domain.Missing)},
		},
		"a project of another domain": {
			domain.View{Scope: domain.ScopeProject, ProjectID: "p3", DomainID: "d1"},
			0, 0,
			[]domain.HourStat{entry(0, -1, 0, domain.Missing)},
		},
		"a domain": {
			domain.View{Scope: domain.ScopeDomain, DomainID: "d1"},
			0, 2,
			[]domain.HourStat{entry(0, 4, 5, domain.Sampled), entry(1, -1, 0, domain.Missing), entry(2, 0, 0, domain.Sampled)},
		},
		"another domain": {
			domain.View{Scope: domain.ScopeDomain, DomainID: "d2"},
			0, 1,
			[]domain.HourStat{entry(0, 5, 6, domain.Sampled), entry(1, 5, 5, domain.Rebuilt)},
		},
		"the cloud": {
			domain.View{Scope: domain.ScopeCloud},
			-1, 2,
			[]domain.HourStat{entry(-1, -1, 0, domain.Missing), entry(0, 9, 11, domain.Sampled), entry(1, -1, 0, domain.Missing), entry(2, 1, 1, domain.Sampled)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := store.Series(t.Context(), tc.view, hour(tc.first), hour(tc.last))
			if diff := cmp.Diff(tc.want, got); err != nil || diff != "" {
				t.Errorf("%v %s", err, diff)
			}
		})
	}
}
