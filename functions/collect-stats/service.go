package collectstats

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

// session is the part of OpenStack that this function needs, as the service account.
type session interface {
	serverReader
	Projects(ctx context.Context, domainID string) ([]domain.Project, error)
	CheckProject(ctx context.Context, id string) error
	In(ctx context.Context, projectID string) (session, error)
}

type service struct {
	login     func(context.Context) (session, error)
	db        *postgres.DB
	stats     postgres.Stats
	jobs      postgres.Jobs
	requests  postgres.Requests
	rows      postgres.Retention
	events    postgres.Events
	monitors  postgres.Monitors
	allows    func(projectID, domainID string) bool
	domains   []string
	backfill  time.Duration
	retention time.Duration // of the request log
	budget    int64         // bytes that the request log may grow by within a day
	claim     time.Duration
	wake      func(functions ...string)
	listed    *listed
	left      postgres.Unserved
	unserved  func([]domain.Remains) []domain.Remains // those that the lists do not let in
	await     func(ctx context.Context) bool          // waits for what awaitClock does
}

// newService has all stores of the database.
func newService(db *postgres.DB, login func(context.Context) (session, error)) service {
	return service{
		login: login, db: db, stats: postgres.Stats{DB: db}, jobs: postgres.Jobs{DB: db},
		requests: postgres.Requests{DB: db}, rows: postgres.Retention{DB: db}, events: postgres.Events{DB: db},
		monitors: postgres.Monitors{DB: db},
		left:     postgres.Unserved{DB: db}, wake: func(...string) {}, listed: &listed{},
		unserved: func([]domain.Remains) []domain.Remains { return nil }, await: awaitClock,
	}
}

const (
	jobKind    = "collect-stats"
	recheckKey = "recheck"
	// After an update the hours of a month are added up, the newest first: the next hour does what is left.
	summarizeFor = 10 * time.Second
	parallel     = 4 // projects that are read concurrently, when each is read separately
	// An hour is counted a moment after it began: until then what Nova writes may carry a time of before the hour.
	begun = 3 * time.Second
	// An event waits for servers whose next check is due this soon; the clock has the function woken for the rest.
	soon = 12 * time.Second
	// A job records that its hour is done. It can be deleted when no event checks that hour any more.
	jobsKept = 2 * maxBackfill
)

// Collect does what is due by the database's clock, and continues while more is due soon. One replica at a time does
// it, whatever the number of events and replicas.
func (s service) Collect(ctx context.Context) error {
	return joined(s.collect(ctx), s.scheduleRecheck(ctx))
}

func (s service) collect(ctx context.Context) error {
	for {
		began := time.Now()
		now, err := s.db.Now(ctx)
		if err != nil {
			return err
		}
		slot := domain.Slot(now)
		next, atMost := slot.Add(begun), domain.EarlyGrace+begun
		if !now.Before(next) {
			atMost = soon
			if next, err = s.work(ctx, now, slot); err != nil {
				return err
			}
		}
		pause := next.Sub(now.Add(time.Since(began)))
		if next.IsZero() || pause > atMost || !s.wait(ctx, pause) {
			return nil
		}
	}
}

// wait waits, unless less than half of the event's time is left after that.
func (s service) wait(ctx context.Context, pause time.Duration) bool {
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < pause+s.claim/2 {
		return false
	}
	select {
	case <-time.After(pause):
		return true
	case <-ctx.Done():
		return false
	}
}

// work does what is due now. It returns when undecided servers are to be checked next: the zero time if there are
// none, or if another replica is at work.
func (s service) work(ctx context.Context, now, slot time.Time) (next time.Time, err error) {
	key, from := domain.HourKey(slot), s.window(slot)[0]
	counted, recheck, err := s.stats.Due(ctx, jobKind, key, from)
	if err != nil {
		return time.Time{}, err
	}
	due := !recheck.IsZero() && !recheck.After(now)
	if counted && !due {
		return recheck, nil
	}
	counting, rechecking := true, true // by this replica
	var failed, failedRecheck error
	if !counted {
		counting, failed = s.countSlot(ctx, now, slot)
	}
	if due {
		rechecking, failedRecheck = s.recheckDue(ctx, now, slot)
	}
	if err = joined(failed, failedRecheck); err != nil || !counting || !rechecking {
		return time.Time{}, err
	}
	_, next, err = s.stats.Due(ctx, jobKind, key, from)
	if due && !next.After(now) { // nothing came of it: the next event tries again
		next = time.Time{}
	}
	return next, err
}

// countSlot does the work of the hour that began last. claimed is false when another replica does it, or it has to
// wait.
func (s service) countSlot(ctx context.Context, now, slot time.Time) (claimed bool, err error) {
	key := domain.HourKey(slot)
	claim, err := s.jobs.Claim(ctx, jobKind, key, s.claim)
	if err != nil || !claim.Acquired {
		return false, err
	}
	unread, failed := s.count(ctx, now, slot)
	err = joined(s.stats.Summarize(ctx, slot.Add(-maxBackfill), time.Now().Add(summarizeFor)),
		s.requests.Maintain(ctx, s.retention), s.rows.Run(ctx), s.jobs.Forget(ctx, jobsKept), failed,
		s.announce(ctx, slot))
	return true, s.end(ctx, key, claim, err, unread, now.Sub(slot))
}

// end writes down how the job of an hour ended, and gives back why it failed. The hour is done when no project is
// unread; projects that stay unread for long are tried with growing pauses.
func (s service) end(ctx context.Context, key string, claim domain.Claim, err, unread error, age time.Duration) error {
	ctx, cancel := domain.Detached(ctx)
	defer cancel()
	switch {
	case err != nil:
		return errors.Join(err, s.jobs.Fail(ctx, jobKind, key, claim, err))
	case unread != nil && age < domain.SettleAfter:
		return errors.Join(ifRetryable(unread), s.jobs.Fail(ctx, jobKind, key, claim, unread))
	case unread != nil:
		return errors.Join(ifRetryable(unread), s.jobs.Postpone(ctx, jobKind, key, claim, unread, age/4))
	}
	// If this process dies now, the hour is not done, or its undecided servers are due.
	return errors.Join(s.scheduleRecheck(ctx), s.jobs.Done(ctx, jobKind, key, claim))
}

// ifRetryable is err if sending the event again may help, else nil: the log names what went wrong, and the next event
// tries.
func ifRetryable(err error) error {
	if apperr.Retryable(err) {
		return err
	}
	return nil
}

// joined is how parts failed that do not need one another. If one of them may work later, all are worth another try.
func joined(parts ...error) error {
	err := errors.Join(parts...)
	if i := slices.IndexFunc(parts, apperr.Retryable); i >= 0 {
		return apperr.Wrap(apperr.CodeOf(parts[i]), err, "not all is done")
	}
	return err
}

// announce writes the event of every hour of the window that has none yet, is known for the whole cloud and is
// settled. Who dies before this leaves it to the next hour's tick.
func (s service) announce(ctx context.Context, slot time.Time) error {
	known, err := s.stats.Settled(ctx, s.window(slot)[0], slot)
	if err != nil {
		return err
	}
	published, err := s.events.Announce(ctx, known)
	if published > 0 {
		slog.InfoContext(ctx, "events of hours were published", "hours", published)
		s.wake("deliver-events")
	}
	return err
}
