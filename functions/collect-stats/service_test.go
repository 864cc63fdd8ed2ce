package collectstats

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// paper is a database that has one hour to announce, and may hang when a job's end is to be written.
type paper struct {
	statStore
	hangs bool
	tell  error // of Announce
}

func (p paper) Announce(_ context.Context, hours []domain.HourStat) (int, error) {
	return len(hours), p.tell
}

// Now is well within an hour.
func (paper) Now(context.Context) (time.Time, error) {
	return time.Date(2026, 1, 2, 3, 20, 0, 0, time.UTC), nil
}

func (paper) Maintain(context.Context, time.Duration) error { return nil }
func (paper) Forget(context.Context, time.Duration) error   { return nil }

func (paper) Due(context.Context, string, string, time.Time) (bool, time.Time, error) {
	return false, time.Time{}, nil
}

func (paper) Claim(context.Context, string, string, time.Duration) (uuid.UUID, bool, error) {
	return uuid.UUID{}, true, nil
}

func (paper) Settled(_ context.Context, _, last time.Time) ([]domain.HourStat, error) {
	return []domain.HourStat{{Hour: last, Source: domain.Sampled}}, nil
}

func (p paper) Done(ctx context.Context, _, _ string, _ uuid.UUID) error {
	if p.hangs {
		<-ctx.Done()
	}
	return ctx.Err()
}

func (p paper) Postpone(ctx context.Context, kind, key string, claim uuid.UUID, _ error, _ time.Duration) error {
	return p.Done(ctx, kind, key, claim)
}

func (p paper) Release(ctx context.Context, kind, key string, claim uuid.UUID) error {
	return p.Done(ctx, kind, key, claim)
}

func (p paper) Fail(ctx context.Context, kind, key string, claim uuid.UUID, _ error) error {
	return p.Done(ctx, kind, key, claim)
}

// on is the service with such a database, whose account cannot log in, and whose outbox fails or not.
func (p paper) on(login, tell error) service {
	p.tell = tell
	return service{
		login: func(context.Context) (session, error) { return nil, login },
		clock: p, stats: p, jobs: p, requests: p, events: p, backfill: time.Hour, wake: func(...string) {},
	}
}

// TestOnePartMayWorkLater: the event is to be sent again as long as that helps any part of the work.
func TestOnePartMayWorkLater(t *testing.T) {
	t.Parallel()
	never, later, ours := apperr.New(apperr.Forbidden, "no"), apperr.New(apperr.Unavailable, "away"), errors.New("a fault")
	for name, tc := range map[string]struct {
		login, tell error
		want        bool
	}{
		"the only one never":       {never, nil, false},
		"both never":               {never, never, false},
		"the later part":           {never, later, true},
		"the earlier part":         {later, never, true},
		"the one that has no code": {ours, never, true},
	} {
		err := paper{}.on(tc.login, tc.tell).Collect(t.Context())
		if err == nil || apperr.Retryable(err) != tc.want || !errors.Is(err, tc.login) || tc.tell != nil && !errors.Is(err, tc.tell) {
			t.Errorf("%s: got %s (%v)", name, apperr.CodeOf(err), err)
		}
	}
}

// TestADatabaseThatHangs when a job's end is to be written does not hold the copy for long, whether its time is up or not.
func TestADatabaseThatHangs(t *testing.T) {
	t.Parallel()
	for _, tell := range []error{nil, apperr.New(apperr.Unavailable, "away")} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			err := paper{hangs: true}.on(apperr.New(apperr.Forbidden, "no"), tell).Collect(canceled(t))
			if took := time.Since(began); took != endTimeout || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("it took %s: %v", took, err)
			}
		})
	}
	if err := (paper{}).on(apperr.New(apperr.Forbidden, "no"), nil).Collect(canceled(t)); errors.Is(err, context.Canceled) {
		t.Errorf("an end was not written because the time was up: %v", err)
	}
}

func canceled(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}
