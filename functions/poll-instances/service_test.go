package pollinstances

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// paper is a session that knows its name, and whether it is over: for what takes a token's whole life to see.
type paper struct {
	session
	name string
	over *atomic.Bool // no project can be entered from it
}

func (p paper) In(_ context.Context, projectID string) (session, error) {
	if p.over != nil && p.over.Load() || projectID == "no role" {
		return nil, apperr.New(apperr.Unauthenticated, "no")
	}
	return paper{name: p.name + "/" + projectID}, nil
}

// TestSessionsEnd and are opened again, once, also that of the account itself.
func TestSessionsEnd(t *testing.T) {
	t.Parallel()
	over := &atomic.Bool{}
	logins := 0
	s := &sessions{kept: map[string]session{}, login: func(context.Context) (session, error) {
		logins++
		return paper{name: string(rune('a' + logins - 1)), over: map[bool]*atomic.Bool{true: over}[logins == 1]}, nil
	}}
	var used []string
	use := func(projectID, refused string) error {
		return s.use(t.Context(), projectID, func(in session) error {
			name := in.(paper).name
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

// TestServerOf: the server that is written down, else the oldest that carries the tag and is there.
func TestServerOf(t *testing.T) {
	t.Parallel()
	id, now := uuid.New(), time.Now()
	server := func(name, status string, age time.Duration, tags ...string) domain.Server {
		return domain.Server{ID: name, ProjectID: "p", Status: status, CreatedAt: now.Add(-age), Tags: tags}
	}
	servers := []domain.Server{
		server("young", "ACTIVE", time.Minute, id.String()), server("gone", "DELETED", time.Hour, id.String()),
		server("old", "BUILD", 2*time.Minute, "x", id.String()), server("other", "ACTIVE", time.Hour, uuid.NewString()),
		{ID: "foreign", ProjectID: "q", Status: "ACTIVE", Tags: []string{id.String()}},
	}
	for written, want := range map[string]string{"": "old", "gone": "gone", "other": "other", "foreign": "", "nowhere": ""} {
		got, ok := serverOf(domain.Instance{ID: id, ProjectID: "p", ServerID: written}, servers)
		if got.ID != want || ok != (want != "") {
			t.Errorf("%q: got %q %t, want %q", written, got.ID, ok, want)
		}
	}
}

// TestAgain: an event is sent again when that may help.
func TestAgain(t *testing.T) {
	t.Parallel()
	never, later := apperr.New(apperr.Unauthenticated, "no"), apperr.New(apperr.Unavailable, "away")
	if err := again([]error{never, nil, later}); !errors.Is(err, later) || errors.Is(err, never) || !apperr.Retryable(err) {
		t.Errorf("got %v", err)
	}
	if err := again([]error{never, nil}); err != nil {
		t.Errorf("got %v", err)
	}
}
