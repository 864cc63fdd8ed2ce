package collectstats

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/eventx"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

// fakeCloud is Keystone and Nova. It is a fake for what the sandbox cannot be made to show at will: a log that becomes
// whole between two requests, a cell that goes down between two requests, tens of thousands of servers. It counts its
// calls.
type fakeCloud struct {
	mu       sync.Mutex
	projects []domain.Project
	servers  []domain.History // with their actions
	calls    map[string]int   // by name, and by name and project or server
	before   func(call, of string) error
	logs     int  // are read, then the next one takes until the time is up; 0: all
	each     bool // the account may only read project by project
}

func (f *fakeCloud) call(name, of string) error {
	if f.each && of == "" && (name == "current" || name == "cells") {
		return apperr.New(apperr.Forbidden, "it takes the admin role")
	}
	f.mu.Lock()
	if f.calls == nil {
		f.calls = map[string]int{}
	}
	f.calls[name]++
	f.calls[name+" "+of]++
	before := f.before
	f.mu.Unlock()
	if before != nil {
		return before(name, of)
	}
	return nil
}

// change gives every server to fn.
func (f *fakeCloud) change(fn func(*domain.History)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.servers {
		fn(&f.servers[i])
	}
}

func (f *fakeCloud) called(name string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[name]
}

func (f *fakeCloud) of(projectID string) []domain.History {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(f.servers),
		func(h domain.History) bool { return projectID != "" && h.ProjectID != projectID })
}

func (f *fakeCloud) Projects(context.Context, string) ([]domain.Project, error) {
	return f.projects, f.call("projects", "")
}

func (f *fakeCloud) CheckProject(_ context.Context, id string) error { return f.call("knows", id) }

func (f *fakeCloud) In(_ context.Context, projectID string) (session, error) {
	return f, f.call("in", projectID)
}

func (f *fakeCloud) CurrentServers(_ context.Context, projectID string, see func(domain.CurrentServer)) error {
	if err := f.call("current", projectID); err != nil {
		return err
	}
	for _, h := range f.of(projectID) {
		if h.Deleted.IsZero() {
			see(domain.CurrentServer{ServerID: h.ServerID, ProjectID: h.ProjectID, State: h.State})
		}
	}
	return nil
}

func (f *fakeCloud) Changes(_ context.Context, projectID string, since time.Time, see func(domain.History)) error {
	if err := f.call("changes", projectID); err != nil {
		return err
	}
	for _, h := range f.of(projectID) {
		if h.Actions = nil; !h.Updated.Before(since) {
			see(h)
		}
	}
	return nil
}

func (f *fakeCloud) CellsUp(_ context.Context, projectID string) error {
	return f.call("cells", projectID)
}

func (f *fakeCloud) Actions(ctx context.Context, serverID string) ([]domain.LoggedAction, error) {
	if f.logs > 0 && f.called("actions") >= f.logs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if err := f.call("actions", serverID); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.IndexFunc(f.servers, func(h domain.History) bool { return h.ServerID == serverID })
	return slices.Clone(f.servers[i].Actions), nil
}

// serviceOn is the function on a database of its own and a fake cloud.
func serviceOn(t *testing.T, database string, cloud *fakeCloud, backfill time.Duration) service {
	t.Helper()
	db, err := postgres.Open(postgres.Config{URL: domain.Secret(database), MaxConns: 2}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	s := newService(db, func(context.Context) (session, error) { return cloud, cloud.call("login", "") })
	s.allows = func(string, string) bool { return true }
	s.rows.Config = postgres.RetentionConfig{
		Orders: 1e5 * time.Hour, Instances: 1e5 * time.Hour, Stats: 1e5 * time.Hour,
	}
	s.backfill, s.retention, s.claim = backfill, 2400*time.Hour, time.Minute
	return s
}

// collect is one event, with its time limit.
func collect(t *testing.T, s service) error {
	t.Helper()
	h := eventx.Handler{Name: "collect-stats", Timeout: time.Minute, Func: s.Handle}
	return h.Work(t.Context(), eventx.Ping("collect-stats", "", time.Now()))
}
