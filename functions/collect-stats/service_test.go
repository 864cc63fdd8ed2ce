package collectstats

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestJoinedIsRetryable as long as a retry helps any part of the work.
func TestJoinedIsRetryable(t *testing.T) {
	t.Parallel()
	final, retryable := apperr.New(apperr.Forbidden, "no"), apperr.New(apperr.Unavailable, "away")
	for name, tc := range map[string]struct {
		parts []error
		want  bool
	}{
		"one final":     {[]error{final, nil}, false},
		"all final":     {[]error{final, final}, false},
		"the last part": {[]error{final, retryable}, true},
		"the first":     {[]error{retryable, final}, true},
		"without code":  {[]error{errors.New("a fault"), final}, true},
	} {
		err := joined(tc.parts...)
		if apperr.Retryable(err) != tc.want || !errors.Is(err, tc.parts[0]) {
			t.Errorf("%s: got %s (%v)", name, apperr.CodeOf(err), err)
		}
	}
	if err := joined(nil, nil); err != nil {
		t.Error(err)
	}
}

// TestEndOfJobIsRecorded although the event's time is up. A database that hangs delays the event by a few seconds only.
func TestEndOfJobIsRecorded(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	s, conn := serviceOn(t, database, &fakeCloud{}, time.Hour), testkit.Connect(t, database)
	claim, err := s.jobs.Claim(t.Context(), jobKind, "hour", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "select from jobs for update"); err != nil {
		t.Fatal(err)
	}
	// its own deadline ended it, and not the event's end
	if err = s.end(canceled, "hour", claim, nil, nil, 0); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.end(canceled, "hour", claim, nil, nil, 0); err != nil {
		t.Error(err)
	}
	if !testkit.Scalar[bool](t, conn, "select done_at is not null from jobs") {
		t.Error("the job is not done")
	}
}
