package collectstats

import (
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestRecheckOfUnreadableProject, such as one that was disabled, keeps its count, and is tried with growing pauses.
// The hour is announced ten minutes after it, with what is uncertain.
func TestRecheckOfUnreadableProject(t *testing.T) {
	t.Parallel()
	database, hour := testkit.Database(t), nextHour()
	cloud := &fakeCloud{
		each: true, projects: twoProjects,
		servers: []domain.History{stood("a", "p1", hour), stood("b", "p2", hour)},
	}
	stops(&cloud.servers[1], hour.Add(time.Second), false)
	tickAt(t, database, cloud, time.Hour, hour.Add(16*time.Second))
	cloud.before = func(call, of string) error {
		if call == "in" && of == "p2" {
			return apperr.New(apperr.Unauthenticated, "the project is disabled")
		}
		return nil
	}
	tried := 0
	for minute := range 30 {
		testkit.SetClock(t, database, hour.Add(time.Duration(minute+1)*time.Minute+16*time.Second))
		cloud.calls = nil
		_ = collect(t, serviceOn(t, database, cloud, time.Hour)) // it says that the project cannot be read
		tried += cloud.calls["in p2"]
	}
	if tried > 14 {
		t.Errorf("the project was tried %d times in 30 minutes", tried)
	}
	if got := rows(t, database, "p2"); got[0].Running != 0 || got[0].Uncertain != 1 {
		t.Errorf("got %+v", got)
	}
	if n := len(announced(t, database)); n != 1 {
		t.Errorf("%d events", n)
	}
}

// TestRecheckWhileCellIsDown takes no server away: all cells must answer before and after the list of
// changes.
func TestRecheckWhileCellIsDown(t *testing.T) {
	t.Parallel()
	database, hour := testkit.Database(t), nextHour()
	cloud := &fakeCloud{projects: twoProjects, servers: []domain.History{stood("a", "p1", hour)}}
	stops(&cloud.servers[0], hour.Add(time.Second), false)
	tickAt(t, database, cloud, time.Hour, hour.Add(16*time.Second))
	hidden := cloud.servers
	cloud.servers = nil
	cloud.before = func(call, _ string) error {
		if call == "cells" && cloud.servers == nil { // it is back after the list of changes
			cloud.servers = hidden
			return apperr.New(apperr.BadGateway, "a cell is down")
		}
		return nil
	}
	testkit.SetClock(t, database, hour.Add(80*time.Second))
	if err := collect(t, serviceOn(t, database, cloud, time.Hour)); err == nil {
		t.Error("a check beside a cell that is down was no failure")
	}
	if got := rows(t, database, "p1"); got[0].Uncertain != 1 {
		t.Errorf("got %+v", got)
	}
}
