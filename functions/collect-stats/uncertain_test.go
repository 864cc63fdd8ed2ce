package collectstats

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

var twoProjects = []domain.Project{{ID: "p1", DomainID: "d1"}, {ID: "p2", DomainID: "d1"}}

// stood is a server that has run for two days.
func stood(id, project string, hour time.Time) domain.History {
	old := hour.Add(-48 * time.Hour)
	actions := []domain.LoggedAction{{Name: "create", Start: old.Add(-9 * time.Second), Finish: old}}
	return domain.History{
		ServerID: id, ProjectID: project, Created: old, Updated: old, State: domain.StateActive,
		Actions: actions,
	}
}

// stops has the server stop: it says so from changed on, and its log does when whole is set.
func stops(h *domain.History, changed time.Time, whole bool) {
	h.Updated, h.State = changed, domain.StateStopped
	if whole {
		h.Actions = append(h.Actions, domain.LoggedAction{
			Name: "stop", Start: changed.Add(-time.Second), Finish: changed,
		})
	}
}

// newest is the last hour of a view, as users see it.
func newest(t *testing.T, s service, v domain.View, hour time.Time) domain.HourStat {
	t.Helper()
	series, err := s.stats.Series(t.Context(), v, hour, hour)
	if err != nil {
		t.Fatal(err)
	}
	return series[0]
}

func stat(hour time.Time, running, total, uncertain int, by map[string]int) domain.HourStat {
	return domain.HourStat{
		Hour: hour, Running: &running, Total: &total, ByStatus: by, Uncertain: uncertain,
		Source: domain.Sampled,
	}
}

// TestOneUncertainServer delays no counts: its project, the domain and the cloud have the newest hour at once, with one
// uncertain server. The same event retries until the log is whole, and then announces the hour.
func TestOneUncertainServer(t *testing.T) {
	t.Parallel()
	for name, each := range map[string]bool{"the whole cloud at once": false, "project by project": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			database, hour := testkit.Database(t), nextHour()
			testkit.SetClock(t, database, hour.Add(4*time.Second))
			cloud := &fakeCloud{each: each, projects: twoProjects, servers: []domain.History{
				stood("a", "p1", hour), stood("b", "p1", hour), stood("c", "p2", hour),
			}}
			stops(&cloud.servers[1], hour.Add(time.Second), false)
			s := serviceOn(t, database, cloud, time.Hour)
			done := make(chan error)
			go func() { done <- collect(t, s) }()
			domainView, cloudView := domain.View{
				Scope:    domain.ScopeDomain,
				DomainID: "d1",
			}, domain.View{Scope: domain.ScopeCloud}
			testkit.Eventually(t, 8*time.Second, "the hour is counted",
				func() bool { return newest(t, s, cloudView, hour).Source == domain.Sampled })
			mine := domain.View{Scope: domain.ScopeProject, ProjectID: "p1"}
			for name, tc := range map[string]struct {
				view domain.View
				want domain.HourStat
			}{
				"project": {mine, stat(hour, 1, 1, 1, map[string]int{"ACTIVE": 1})},
				"domain":  {domainView, stat(hour, 2, 2, 1, map[string]int{"ACTIVE": 2})},
				"cloud":   {cloudView, stat(hour, 2, 2, 1, map[string]int{"ACTIVE": 2})},
			} {
				if diff := cmp.Diff(tc.want, newest(t, s, tc.view, hour)); diff != "" {
					t.Errorf("%s: %s", name, diff)
				}
			}
			expect(t, database, hour) // it is not announced yet
			cloud.change(func(h *domain.History) {
				if h.ServerID == "b" {
					stops(h, hour.Add(time.Second), true)
				}
			})
			if err := <-done; err != nil { // 10 s after the count
				t.Fatal(err)
			}
			if diff := cmp.Diff(stat(hour, 2, 2, 0, map[string]int{"ACTIVE": 2}), newest(t, s, mine, hour)); diff != "" {
				t.Error(diff)
			}
			expect(t, database, hour, 0)
			var data map[string]any
			if err := json.Unmarshal([]byte(announced(t, database)[0].Data), &data); err != nil ||
				data["running"] != 3. ||
				data["uncertain"] != 0. {
				t.Errorf("announced is %v %v", data, err)
			}
			if n, want := cloud.called("current"), map[bool]int{false: 1, true: 2}[each]; n != want {
				t.Errorf("servers were read %d times, want %d: once for the count, never to check a server again",
					n, want)
			}
		})
	}
}

// tickAt handles one event at a moment, and returns its calls to the cloud.
func tickAt(t *testing.T, database string, cloud *fakeCloud, backfill time.Duration, at time.Time) map[string]int {
	t.Helper()
	testkit.SetClock(t, database, at)
	cloud.calls = nil
	if err := collect(t, serviceOn(t, database, cloud, backfill)); err != nil {
		t.Fatal(err)
	}
	return cloud.calls
}

// TestUndecidedLog: every minute's tick reads the log for ten minutes, then with growing pauses. The hour is announced
// once, after these ten minutes, with its uncertain servers. A tick without due work sends the cloud no request.
func TestUndecidedLog(t *testing.T) {
	t.Parallel()
	database, hour := testkit.Database(t), nextHour()
	cloud := &fakeCloud{
		projects: twoProjects, servers: []domain.History{stood("a", "p1", hour), stood("b", "p1", hour)},
	}
	stops(&cloud.servers[1], hour.Add(time.Second), false)
	var asked []int
	for minute := range 24 {
		calls := tickAt(t, database, cloud, time.Hour, hour.Add(time.Duration(minute)*time.Minute+16*time.Second))
		if calls["actions"] > 0 {
			asked = append(asked, minute)
		} else if len(calls) > 0 {
			t.Errorf("minute %d: it asked %v", minute, calls)
		}
		switch announcedYet := len(announced(t, database)) == 1; {
		case minute < 10 && announcedYet:
			t.Fatalf("it was announced after %d minutes", minute)
		case minute >= 10 && !announcedYet:
			t.Fatalf("it was not announced after %d minutes", minute)
		}
	}
	if diff := cmp.Diff([]int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 21}, asked); diff != "" {
		t.Error(diff)
	}
	var data map[string]any
	if err := json.Unmarshal([]byte(announced(t, database)[0].Data), &data); err != nil || data["running"] != 1. ||
		data["uncertain"] != 1. {
		t.Errorf("announced is %v %v", data, err)
	}
	// Should the log decide it later after all, the hour says so. It is announced once.
	stops(&cloud.servers[1], hour.Add(time.Second), true)
	tickAt(t, database, cloud, 3*time.Hour, hour.Add(2*time.Hour))
	want := []row{{hour, 2, 2, map[string]int{"ACTIVE": 2}, 0, domain.Rebuilt}}
	if diff := cmp.Diff(want, rows(t, database, "p1")[:1]); diff != "" {
		t.Error(diff)
	}
	if n := len(announced(t, database)); n != 3 { // and the two hours after it
		t.Errorf("%d events", n)
	}
}

// TestVanishedServer: a server that is gone from Nova, because it was purged or never got a host, is counted no more.
func TestVanishedServer(t *testing.T) {
	t.Parallel()
	database, hour := testkit.Database(t), nextHour()
	cloud := &fakeCloud{projects: twoProjects, servers: []domain.History{
		stood("a", "p1", hour), {
			ServerID: "b", ProjectID: "p1", Created: hour.Add(-time.Second),
			Updated: hour.Add(time.Second), State: "building",
		},
	}}
	tickAt(t, database, cloud, time.Hour, hour.Add(20*time.Second))
	if got := rows(t, database, "p1"); got[0].Running != 1 || got[0].Uncertain != 1 {
		t.Fatalf("got %+v", got)
	}
	cloud.servers = cloud.servers[:1]
	calls := tickAt(t, database, cloud, time.Hour, hour.Add(80*time.Second))
	if got := rows(t, database, "p1"); got[0].Running != 1 || got[0].Total != 1 || got[0].Uncertain != 0 ||
		calls["actions"] != 0 {
		t.Errorf("got %+v after %v", got, calls)
	}
}
