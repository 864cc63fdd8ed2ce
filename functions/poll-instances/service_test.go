package pollinstances

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/flow"
)

// fakeSession is a session that knows its name, and whether it has ended: for what takes a token's whole life to see.
type fakeSession struct {
	session
	name string
	over *atomic.Bool // no project can be entered from it
}

func (p fakeSession) In(_ context.Context, projectID string) (session, error) {
	if p.over != nil && p.over.Load() || projectID == "no role" {
		return nil, apperr.New(apperr.Unauthenticated, "no")
	}
	return fakeSession{name: p.name + "/" + projectID}, nil
}

// TestSessionsEnd and are opened again, once, also that of the account itself.
func TestSessionsEnd(t *testing.T) {
	t.Parallel()
	over := &atomic.Bool{}
	logins := 0
	s := newSessions(func(context.Context) (session, error) {
		logins++
		return fakeSession{
			name: string(rune('a' + logins - 1)), over: map[bool]*atomic.Bool{true: over}[logins == 1],
		}, nil
	})
	var used []string
	use := func(projectID, refused string) error {
		return s.use(t.Context(), projectID, func(in session) error {
			name := in.(fakeSession).name
			used = append(used, name)
			if name == refused {
				return apperr.New(apperr.Unauthenticated, "no")
			}
			return nil
		})
	}
	for _, step := range []struct {
		project, refused string
		fails            bool
	}{
		{"", "", false},
		{"p", "", false},
		{"p", "", false},   // one login, kept
		{"p", "a/p", true}, // refused for good: tried twice
		{"no role", "", true},
		{"", "", false}, // costs a login, which is kept
		{"p", "", false},
		{"q", "", false},
		{"", "b", false}, // over
	} {
		if step.project == "no role" {
			over.Store(true)
		}
		if err := use(step.project, step.refused); (err != nil) != step.fails {
			t.Errorf("%+v: %v", step, err)
		}
	}
	want := []string{"a", "a/p", "a/p", "a/p", "a/p", "b", "a/p", "b/q", "b", "c"}
	if diff := cmp.Diff(want, used); diff != "" || logins != 3 {
		t.Errorf("%d logins: %s", logins, diff)
	}
}

// TestServerOf: the stored server of the instance's project, and no other one, whatever its tags say.
func TestServerOf(t *testing.T) {
	t.Parallel()
	id := uuid.New()
	servers := []domain.Server{
		{ID: "tagged", ProjectID: "p", Status: "ACTIVE", Tags: []string{id.String()}},
		{ID: "gone", ProjectID: "p", Status: "DELETED"},
		{ID: "foreign", ProjectID: "q", Status: "ACTIVE", Tags: []string{id.String()}},
	}
	for stored, want := range map[string]string{"": "", "tagged": "tagged", "gone": "gone", "foreign": "", "nowhere": ""} {
		got, ok := serverOf(domain.Instance{ID: id, ProjectID: "p", ServerID: stored}, servers)
		if got.ID != want || ok != (want != "") {
			t.Errorf("%q: got %q %t, want %q", stored, got.ID, ok, want)
		}
	}
}

// TestRetryableErrors: an event is sent again when that may help.
func TestRetryableErrors(t *testing.T) {
	t.Parallel()
	never, later := apperr.New(apperr.Unauthenticated, "no"), apperr.New(apperr.Unavailable, "unavailable")
	if err := retryable([]error{never, nil, later}); !errors.Is(err, later) || errors.Is(err, never) ||
		!apperr.Retryable(err) {
		t.Errorf("got %v", err)
	}
	if err := retryable([]error{never, nil}); err != nil {
		t.Errorf("got %v", err)
	}
}

// TestFullDue: also when many projects have a few unknown instances each.
func TestFullDue(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for unknown, want := range map[int]bool{0: false, 20: false, 21: true} {
		var polls []domain.Poll
		for _, id := range []string{"a", "b", "c", "d", "e"} {
			polls = append(polls, domain.Poll{ProjectID: id, Since: now, FullAt: now, Uncertain: unknown})
		}
		r := newReader(&event{service: &service{full: time.Hour}}, domain.Poll{}, "", polls)
		r.start = now
		if got := r.fullDue(); got != want {
			t.Errorf("5 times %d unknown: %t", unknown, got)
		}
	}
}

// TestIsUnreadable: every attempt failed for long, and neither changes nor all servers were read. While a cell is down
// only the changes are.
func TestIsUnreadable(t *testing.T) {
	t.Parallel()
	now := time.Now()
	long, lately := now.Add(-time.Hour), now.Add(-time.Minute)
	for name, tc := range map[string]struct {
		poll domain.Poll
		want bool
	}{
		"unreachable":     {domain.Poll{Since: long, FullAt: long, FailingSince: long}, true},
		"not read":        {domain.Poll{Since: long, FullAt: long}, false},
		"for a moment":    {domain.Poll{Since: long, FullAt: long, FailingSince: lately}, false},
		"read since then": {domain.Poll{Since: lately, FullAt: long, FailingSince: long}, false},
		"a cell is down":  {domain.Poll{Since: long, FullAt: lately, FailingSince: long}, false},
	} {
		if got := isUnreadable(tc.poll, now, 3*time.Minute); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// TestSpared: a cloud that accepts and does not answer is as silent as one that is unavailable, if it had some time. An
// end of ours says nothing.
func TestSpared(t *testing.T) {
	t.Parallel()
	long, up := time.Now().Add(-time.Minute), context.DeadlineExceeded
	for name, tc := range map[string]struct {
		reader reader
		ended  error
		want   bool
	}{
		"no answer":           {reader{requestedAt: long}, up, false},
		"little time":         {reader{requestedAt: time.Now()}, up, true},
		"not requested":       {reader{}, up, true},
		"responded meanwhile": {reader{requestedAt: long, responded: true}, up, true},
		"we have to end":      {reader{requestedAt: long}, context.Canceled, true},
	} {
		tc.reader.event = &event{leastWait: 30 * time.Second}
		if got := tc.reader.spared(tc.ended); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// TestRefusalsEnd: a call that Nova refused is tried again after some minutes.
func TestRefusalsEnd(t *testing.T) {
	t.Parallel()
	now := time.Now()
	r := refusals{now: func() time.Time { return now }}
	r.add("p")
	if !r.has("p") {
		t.Error("it is requested again immediately")
	}
	if r.has("q") {
		t.Error("what was not refused is not requested")
	}
	now = now.Add(refusedFor)
	if r.has("p") {
		t.Error("it is never requested again")
	}
}

// slowLogin fakes an account that is slow to log in again after the first time.
func slowLogin(ctx context.Context, logins *int) (session, error) {
	*logins++
	if *logins > 1 && !flow.Sleep(ctx, time.Minute) {
		return nil, ctx.Err()
	}
	return fakeSession{name: strings.Repeat("a", *logins)}, nil
}

// TestSessionsWhileLoggingIn: a kept session is used while the account logs in, and who waits for the login stops
// waiting with its context.
func TestSessionsWhileLoggingIn(t *testing.T) {
	t.Parallel()
	logins := 0
	s := newSessions(func(ctx context.Context) (session, error) { return slowLogin(ctx, &logins) })
	synctest.Test(t, func(t *testing.T) {
		use := func(ctx context.Context, project string) error {
			return s.use(ctx, project, func(session) error { return nil })
		}
		if err := use(t.Context(), "p"); err != nil {
			t.Fatal(err)
		}
		s.forget("", fakeSession{name: "a"})
		go func() { _ = use(t.Context(), "") }()
		synctest.Wait()
		began := time.Now()
		if err := use(t.Context(), "p"); err != nil || time.Since(began) != 0 {
			t.Errorf("the kept session: %v after %s", err, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := use(ctx, "q"); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("waiting for the login: %v after %s", err, time.Since(began))
		}
	})
}
