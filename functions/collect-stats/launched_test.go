package collectstats

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// created is a server that became ACTIVE a few seconds after it was created.
func created(id, project string, at time.Time) domain.History {
	ready := at.Add(9 * time.Second)
	return domain.History{
		ServerID: id, ProjectID: project, Created: at, Updated: ready, State: domain.StateActive,
		Actions: []domain.LoggedAction{{Name: "create", Start: at, Finish: ready}},
	}
}

// deleted has the server be deleted.
func deleted(h domain.History, at time.Time) domain.History {
	h.Updated, h.Deleted, h.State = at, at, domain.StateDeleted
	h.Actions = append(h.Actions, domain.LoggedAction{Name: "delete", Start: at.Add(-time.Second), Finish: at})
	return h
}

// TestLaunched counts each server in the hour in which it was created, and one that was deleted in it as well, with no
// call that the other numbers do not take. An hour that is sampled, late or rebuilt has the same number.
func TestLaunched(t *testing.T) {
	t.Parallel()
	hour := nextHour()
	ago := func(d time.Duration) time.Time { return hour.Add(-d) }
	changed, failed := created("changed", "p1", ago(time.Hour+time.Second)), created("failed", "p1", ago(time.Minute))
	stops(&changed, ago(30*time.Minute), true)
	failed.State, failed.Actions[0].Failed = domain.StateError, true
	servers := []domain.History{
		stood("old", "p1", hour), changed, failed,
		created("first", "p1", ago(time.Hour)),
		deleted(created("short", "p1", ago(50*time.Minute)), ago(40*time.Minute)),
		created("next", "p1", hour),
		deleted(created("next short", "p1", hour.Add(2*time.Second)), hour.Add(20*time.Minute)),
		deleted(created("other", "p2", ago(20*time.Minute)), hour.Add(time.Second)),
	}
	for name, each := range map[string]bool{"the whole cloud in one list": false, "project by project": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sampled, late := testkit.Database(t), testkit.Database(t)
			cloud := &fakeCloud{each: each, projects: twoProjects, servers: servers}
			at := func(n int) time.Time { return hour.Add(time.Duration(n)*time.Hour + time.Minute) }
			for n := range 2 {
				calls := tickAt(t, sampled, cloud, time.Hour, at(n))
				want := map[bool]int{false: 1, true: 2}[each]
				if calls["changes"] != want {
					t.Errorf("what changed was read %d times, want %d", calls["changes"], want)
				}
			}
			tickAt(t, late, cloud, 5*time.Hour, at(3))
			for project, want := range map[string][]int{"p1": {3, 2}, "p2": {1, 0}} {
				var got, rebuilt []int
				for _, r := range rows(t, sampled, project) {
					got = append(got, r.Launched)
				}
				for _, r := range rows(t, late, project) {
					if !r.Hour.Before(hour) && len(rebuilt) < len(want) {
						rebuilt = append(rebuilt, r.Launched)
					}
				}
				if diff := cmp.Diff(want, got) + cmp.Diff(want, rebuilt); diff != "" {
					t.Errorf("%s: %s", project, diff)
				}
			}
		})
	}
}

// TestLaunchedOfUnreadProject is unknown, for the project and the sums.
func TestLaunchedOfUnreadProject(t *testing.T) {
	t.Parallel()
	database, hour := testkit.Database(t), nextHour()
	cloud := &fakeCloud{each: true, projects: twoProjects, servers: []domain.History{
		created("a", "p1", hour.Add(-time.Minute)), created("b", "p2", hour.Add(-time.Minute)),
	}}
	cloud.before = func(call, of string) error {
		if call == "in" && of == "p2" {
			return apperr.New(apperr.Forbidden, "no")
		}
		return nil
	}
	tickAt(t, database, cloud, time.Hour, hour.Add(time.Minute))
	s := serviceOn(t, database, cloud, time.Hour)
	for project, want := range map[string]*int{"p1": new(1), "p2": nil} {
		view := domain.View{Scope: domain.ScopeProject, ProjectID: project}
		if diff := cmp.Diff(want, newest(t, s, view, hour).Launched); diff != "" {
			t.Errorf("%s: %s", project, diff)
		}
	}
	if got := newest(t, s, domain.View{Scope: domain.ScopeCloud}, hour); got.Launched != nil {
		t.Errorf("of the cloud %d are launched, want null", *got.Launched)
	}
}

// TestLaunchedOfUndecidedServer is known from the first count on: no check of the server's log changes it.
func TestLaunchedOfUndecidedServer(t *testing.T) {
	t.Parallel()
	database, hour := testkit.Database(t), nextHour()
	cloud := &fakeCloud{projects: twoProjects, servers: []domain.History{
		created("decided", "p1", hour.Add(-time.Minute)),
		{
			ServerID: "undecided", ProjectID: "p1", Created: hour.Add(-time.Second), Updated: hour.Add(time.Second),
			State: domain.StateActive,
		},
	}}
	for n, want := range []row{
		{hour, 1, 1, 2, map[string]int{"ACTIVE": 1}, 1, domain.Sampled},
		{hour, 1, 1, 2, map[string]int{"ACTIVE": 1, "BUILD": 1}, 0, domain.Sampled},
	} {
		want.Total += n
		tickAt(t, database, cloud, time.Hour, hour.Add(time.Duration(n)*time.Minute+16*time.Second))
		if diff := cmp.Diff([]row{want}, rows(t, database, "p1")); diff != "" {
			t.Errorf("check %d: %s", n, diff)
		}
		cloud.servers[1].Actions = []domain.LoggedAction{
			{Name: "create", Start: hour.Add(-time.Second), Finish: hour.Add(time.Second)},
		}
	}
}

// TestLaunchedManyShortLived servers, as of a CI: 20 000 in the hour, and no log is read for them.
func TestLaunchedManyShortLived(t *testing.T) {
	t.Parallel()
	const servers, projects = 20_000, 50
	database, hour := testkit.Database(t), nextHour()
	cloud := &fakeCloud{}
	for i := range projects {
		cloud.projects = append(cloud.projects, domain.Project{ID: fmt.Sprint("p", i), DomainID: "d1"})
	}
	for i := range servers {
		at := hour.Add(-time.Hour).Add(time.Duration(i) * time.Hour / servers / 2)
		h := created(fmt.Sprint("s", i), fmt.Sprint("p", i%projects), at)
		cloud.servers = append(cloud.servers, deleted(h, at.Add(time.Minute)))
	}
	calls := tickAt(t, database, cloud, time.Hour, hour.Add(time.Minute))
	got := newest(t, serviceOn(t, database, cloud, time.Hour), domain.View{Scope: domain.ScopeCloud}, hour)
	want := stat(hour, 0, 0, 0, map[string]int{})
	want.Launched = new(servers)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if calls["current"] != 1 || calls["changes"] != 1 || calls["actions"] != 0 {
		t.Errorf("it called %d, %d and %d times, want 1, 1 and 0", calls["current"], calls["changes"], calls["actions"])
	}
}
