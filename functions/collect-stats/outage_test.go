package collectstats

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/eventx"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestUncertainServerKeepsHour: an hour that one project lacks reads no logs of the servers of other projects,
// nor those of its own that need none.
func TestUncertainServerKeepsHour(t *testing.T) {
	t.Parallel()
	database, hour := testkit.Database(t), nextHour()
	cloud := &fakeCloud{projects: twoProjects[:1]}
	for i := range 50 {
		h := stood(fmt.Sprint("other", i), "p2", hour)
		stops(&h, hour.Add(-10*time.Minute), true) // before the newest hour, after the one that p1 lacks
		cloud.servers = append(cloud.servers, h)
	}
	lacking, young := stood("lacking", "p1", hour), stood("young", "p1", hour)
	stops(&lacking, hour.Add(-30*time.Minute), true)
	young.Created = hour.Add(-20 * time.Minute)
	young.Updated = young.Created
	cloud.servers = append(cloud.servers, lacking, young)

	cloud.projects = twoProjects
	cloud.before = func(call, of string) error { // of the first hour, p1 cannot be read
		if of == "p1" && call == "in" {
			return apperr.New(apperr.Forbidden, "no")
		}
		return nil
	}
	cloud.each = true
	tickAt(t, database, cloud, time.Hour, hour.Add(-59*time.Minute))
	if p1, p2 := rows(t, database, "p1"), rows(t, database, "p2"); len(p1) != 0 || len(p2) != 1 {
		t.Fatalf("got %v and %v", p1, p2)
	}
	cloud.before, cloud.each = nil, false
	calls := tickAt(t, database, cloud, 2*time.Hour, hour.Add(time.Minute))
	if got := rows(t, database, "p1"); len(got) != 2 || got[0].Running != 1 || got[1].Running != 1 ||
		got[1].Total != 2 {
		t.Errorf("got %+v", got)
	}
	for name := range calls {
		if strings.HasPrefix(name, "actions other") {
			t.Errorf("it read %s", name)
		}
	}
	if calls["actions"] != 1 || calls["actions lacking"] != 1 || calls["current"] != 1 {
		t.Errorf("it called %v", calls)
	}
}

// stoppedAt is when one of the servers of an outage stopped.
func stoppedAt(hour time.Time, i, servers int) time.Time {
	return hour.Add(-time.Duration(i)*24*time.Hour/time.Duration(servers) - time.Second)
}

// outage is a cloud of servers that each stopped at some time of the last day, and no one counted.
func outage(hour time.Time, servers, projects int) *fakeCloud {
	cloud := &fakeCloud{}
	for i := range projects {
		cloud.projects = append(cloud.projects, domain.Project{ID: fmt.Sprint("p", i), DomainID: "d1"})
	}
	for i := range servers {
		h := stood(fmt.Sprint("s", i), fmt.Sprint("p", i%projects), hour)
		stops(&h, stoppedAt(hour, i, servers), true)
		cloud.servers = append(cloud.servers, h)
	}
	return cloud
}

// TestOutageIsFilledInParts: each event has time for a part of the logs. The newest hour comes first, every log is
// read once, and in the end all hours are right.
func TestOutageIsFilledInParts(t *testing.T) {
	t.Parallel()
	const servers, projects = 600, 3
	database, hour := testkit.Database(t), nextHour()
	cloud := outage(hour, servers, projects)
	cloud.logs = 250 // in an event
	all := map[string]int{}
	events := 0
	for ; events < 10; events++ {
		testkit.SetClock(t, database, hour.Add(time.Duration(events)*time.Minute+time.Minute))
		s := serviceOn(t, database, cloud, 24*time.Hour)
		h := eventx.Handler{Name: "collect-stats", Timeout: 8 * time.Second, Func: s.Handle}
		s.claim = h.Timeout
		cloud.calls = nil
		if err := h.Work(t.Context(), eventx.Ping("collect-stats", "", time.Now())); err != nil {
			t.Fatal(err)
		}
		for name, n := range cloud.calls {
			all[name] += n
		}
		last := newest(t, s, domain.View{Scope: domain.ScopeCloud}, hour)
		if last.Source != domain.Sampled || *last.Running != 0 || last.Uncertain != 0 {
			t.Fatalf("after %d events the newest hour is %+v", events+1, last)
		}
		if cloud.calls["actions"] == 0 {
			break
		}
	}
	if events < 2 {
		t.Errorf("it took %d events, so this proves nothing", events)
	}
	for i := range servers {
		want := 0
		if !stoppedAt(hour, i, servers).Before(hour.Add(-23 * time.Hour)) {
			want = 1
		}
		if n := all[fmt.Sprint("actions s", i)]; n != want {
			t.Errorf("the log of server %d was read %d times, want %d", i, n, want)
		}
	}
	if all["current"] != 1 {
		t.Errorf("servers were read %d times", all["current"])
	}
	checkOutage(t, database, hour, servers, projects)
}

// checkOutage sees that each hour has as many running servers as had not stopped then.
func checkOutage(t *testing.T, database string, hour time.Time, servers, projects int) {
	t.Helper()
	want, got := map[string]int{}, map[string]int{}
	for i := range projects {
		for _, r := range rows(t, database, fmt.Sprint("p", i)) {
			got[domain.HourKey(r.Hour)] += r.Running
			got["uncertain"] += r.Uncertain
		}
	}
	want["uncertain"] = 0
	for ago := range 24 {
		at, n := hour.Add(-time.Duration(ago)*time.Hour), 0
		for i := range servers {
			if at.Before(stoppedAt(hour, i, servers)) {
				n++
			}
		}
		want[domain.HourKey(at)] = n
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestUnreadableLog leaves its server uncertain, and does not affect the others. When Nova answers for no server, the
// counts are kept, the event fails, and the next one resumes.
func TestUnreadableLog(t *testing.T) {
	t.Parallel()
	database, hour := testkit.Database(t), nextHour()
	cloud := outage(hour, 240, 1)
	cloud.before = func(call, of string) error {
		if call == "actions" && of == "s29" {
			return apperr.New(apperr.BadGateway, "nova answered with status 500")
		}
		return nil
	}
	tickAt(t, database, cloud, 4*time.Hour, hour.Add(time.Minute))
	if got := rows(t, database, "p0"); got[0].Running != 29 || got[0].Uncertain != 1 || got[3].Uncertain != 0 {
		t.Errorf("got %+v", got)
	}

	database = testkit.Database(t)
	unavailable := true
	cloud.before = func(call, _ string) error {
		if call == "actions" && unavailable {
			return apperr.New(apperr.Unavailable, "nova is not available")
		}
		return nil
	}
	testkit.SetClock(t, database, hour.Add(time.Minute))
	if err := collect(t, serviceOn(t, database, cloud, 4*time.Hour)); !apperr.Retryable(err) {
		t.Errorf("got %v, want that it is sent again", err)
	}
	if got := rows(t, database, "p0"); len(got) != 4 || got[0].Uncertain != 30 || got[3].Uncertain != 0 {
		t.Errorf("got %+v", got)
	}
	unavailable = false
	calls := tickAt(t, database, cloud, 4*time.Hour, hour.Add(2*time.Minute))
	if got := rows(t, database, "p0"); got[0].Running != 30 || got[0].Uncertain != 0 || calls["current"] != 0 {
		t.Errorf("got %+v after %v", got, calls)
	}
}

// TestCellGoesDown after the current servers were read, and before the changes, leaves the hour missing: its
// servers would be counted as they stand now.
func TestCellGoesDown(t *testing.T) {
	t.Parallel()
	for name, each := range map[string]bool{"the whole cloud together": false, "project by project": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			database, hour := testkit.Database(t), nextHour()
			cloud := &fakeCloud{each: each, projects: twoProjects[:1], servers: []domain.History{
				stood("a", "p1", hour), stood("in the cell", "p1", hour),
			}}
			stops(&cloud.servers[1], hour.Add(time.Minute), true)
			hidden, down := cloud.servers[1], false
			cloud.before = func(call, _ string) error {
				switch {
				case call == "changes" && cloud.servers[len(cloud.servers)-1].ServerID == hidden.ServerID:
					cloud.servers, down = cloud.servers[:1], true
				case call == "cells" && down:
					return apperr.New(apperr.BadGateway, "nova answered with status 500")
				}
				return nil
			}
			testkit.SetClock(t, database, hour.Add(2*time.Minute))
			s := serviceOn(t, database, cloud, time.Hour)
			if err := collect(t, s); !apperr.Retryable(err) || len(rows(t, database, "p1")) != 0 {
				t.Errorf("got %v, %+v", err, rows(t, database, "p1"))
			}
			cloud.servers, down, cloud.before = append(cloud.servers, hidden), false, nil
			if err := collect(t, s); err != nil {
				t.Fatal(err)
			}
			if got := rows(t, database, "p1"); len(got) != 1 || got[0].Running != 2 || got[0].Uncertain != 0 {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// TestEarlyTick waits for the full hour, so that no sample is from before it.
func TestEarlyTick(t *testing.T) {
	t.Parallel()
	database, hour := testkit.Database(t), nextHour()
	testkit.SetClock(t, database, hour.Add(-2*time.Second))
	cloud := &fakeCloud{projects: twoProjects[:1], servers: []domain.History{stood("a", "p1", hour)}}
	s := serviceOn(t, database, cloud, time.Hour)
	cloud.before = func(call, _ string) error {
		if now, err := s.db.Now(context.Background()); call == "current" && (err != nil || now.Before(hour)) {
			t.Errorf("the servers were read at %s %v, before the hour", now, err)
		}
		return nil
	}
	if err := collect(t, s); err != nil {
		t.Fatal(err)
	}
	want := []row{{hour, 1, 1, 0, map[string]int{"ACTIVE": 1}, 0, domain.Sampled}}
	if diff := cmp.Diff(want, rows(t, database, "p1")); diff != "" {
		t.Error(diff)
	}
}

// TestTimeoutDuringListing: the next event keeps the servers that were read, and reads only the changes since.
func TestTimeoutDuringListing(t *testing.T) {
	t.Parallel()
	database, hour := testkit.Database(t), nextHour()
	testkit.SetClock(t, database, hour.Add(time.Minute))
	cloud := outage(hour, 48, 1)
	s := serviceOn(t, database, cloud, 24*time.Hour)
	cloud.before = func(call, _ string) error {
		if call == "changes" && cloud.called("changes") == 2 { // of the older hours
			return apperr.New(apperr.Timeout, "nova did not answer in time")
		}
		return nil
	}
	if err := collect(t, s); !apperr.Retryable(err) {
		t.Errorf("got %v, want that it is sent again", err)
	}
	if got := rows(t, database, "p0"); len(got) != 1 || !got[0].Hour.Equal(hour) {
		t.Fatalf("got %+v, want the newest hour", got)
	}
	late := stood("late", "p0", hour)
	late.Created, late.Updated = hour.Add(2*time.Minute), hour.Add(2*time.Minute)
	cloud.servers = append(cloud.servers, late)
	if err := collect(t, s); err != nil || cloud.called("current") != 1 {
		t.Errorf("servers were read %d times: %v", cloud.called("current"), err)
	}
	checkOutage(t, database, hour, 48, 1)
}

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
		Hour: hour, Running: &running, Total: &total, Launched: new(0), ByStatus: by, Uncertain: uncertain,
		Source: domain.Sampled,
	}
}

// TestOneUncertainServer delays no counts: its project, the domain and the cloud have the newest hour immediately, with
// one uncertain server. The same event retries until the log is whole, and then announces the hour.
func TestOneUncertainServer(t *testing.T) {
	t.Parallel()
	for name, each := range map[string]bool{"the whole cloud together": false, "project by project": true} {
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
	var called []int
	for minute := range 24 {
		calls := tickAt(t, database, cloud, time.Hour, hour.Add(time.Duration(minute)*time.Minute+16*time.Second))
		if calls["actions"] > 0 {
			called = append(called, minute)
		} else if len(calls) > 0 {
			t.Errorf("minute %d: it called %v", minute, calls)
		}
		switch announcedYet := len(announced(t, database)) == 1; {
		case minute < 10 && announcedYet:
			t.Fatalf("it was announced after %d minutes", minute)
		case minute >= 10 && !announcedYet:
			t.Fatalf("it was not announced after %d minutes", minute)
		}
	}
	if diff := cmp.Diff([]int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 21}, called); diff != "" {
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
	want := []row{{hour, 2, 2, 0, map[string]int{"ACTIVE": 2}, 0, domain.Rebuilt}}
	if diff := cmp.Diff(want, rows(t, database, "p1")[:1]); diff != "" {
		t.Error(diff)
	}
	if n := len(announced(t, database)); n != 3 { // and the two hours after it
		t.Errorf("%d events", n)
	}
}

// TestVanishedServer: a server that is deleted from Nova, because it was purged or never got a host, is counted no
// more.
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
