package collectstats

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// session is the part of OpenStack that this function needs, as the service account.
type session interface {
	census
	Projects(ctx context.Context, domainID string) ([]domain.Project, error)
	KnowsProject(ctx context.Context, id string) error
	In(ctx context.Context, projectID string) (session, error)
}

// The parts of the database that this function needs.
type (
	clock interface {
		Now(ctx context.Context) (time.Time, error)
	}
	statStore interface {
		Due(ctx context.Context, kind, key string, from time.Time) (counted bool, recheck time.Time, err error)
		See(ctx context.Context, projects []domain.Project, first, last time.Time) error
		Known(ctx context.Context, from time.Time) (map[string]map[time.Time]bool, error)
		Lacking(ctx context.Context, first, last time.Time) (projectIDs []string, err error)
		Excuse(ctx context.Context, projectID string, first, last time.Time) error
		Insert(ctx context.Context, counts []domain.HourCount) error
		Undecided(ctx context.Context, from time.Time) ([]domain.HourCount, error)
		Refine(ctx context.Context, counts []domain.RefinedCount) error
		Settled(ctx context.Context, first, last time.Time) ([]domain.HourStat, error)
	}
	jobStore interface {
		Claim(ctx context.Context, kind, key string, claimFor time.Duration) (claim uuid.UUID, held bool, err error)
		Done(ctx context.Context, kind, key string, claim uuid.UUID) error
		Fail(ctx context.Context, kind, key string, claim uuid.UUID, reason error) error
		Postpone(ctx context.Context, kind, key string, claim uuid.UUID, reason error, pause time.Duration) error
		Release(ctx context.Context, kind, key string, claim uuid.UUID) error
		Forget(ctx context.Context, age time.Duration) error
	}
	outbox interface {
		Announce(ctx context.Context, hours []domain.HourStat) (told int, err error)
	}
	requestLog interface {
		Maintain(ctx context.Context, retention time.Duration) error
	}
)

type service struct {
	login     func(context.Context) (session, error)
	clock     clock
	stats     statStore
	jobs      jobStore
	requests  requestLog
	allows    func(projectID, domainID string) bool
	domains   []string
	backfill  time.Duration
	retention time.Duration
	claim     time.Duration

	events outbox
	wake   func(functions ...string)
	listed *listed
}

const (
	jobKind    = "collect-stats"
	recheckKey = "recheck"
	parallel   = 4 // projects at once, when each has to be asked for by itself
	// An hour is counted a moment after it began: until then what Nova writes may carry a time of before the hour.
	begun = 3 * time.Second
	// An event goes on by itself with servers that are to be checked again this soon; the next tick does the rest.
	soon = 12 * time.Second
	// A job says that its hour's work was done. It is no use any more when nobody asks for that hour.
	jobsKept = 2 * maxBackfill
	// A job's end is written also when the time for its work is up; a database that hangs must not hold the copy.
	endTimeout = 5 * time.Second
)

// Collect does what is due by the database's clock, and goes on while more is due soon. One replica does it at a time,
// whatever number of ticks and replicas want to.
func (s service) Collect(ctx context.Context) error {
	for {
		asked := time.Now()
		now, err := s.clock.Now(ctx)
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
		pause := next.Sub(now.Add(time.Since(asked)))
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
	if due && !next.After(now) { // nothing came of it: the next tick tries again
		next = time.Time{}
	}
	return next, err
}

// countSlot does the work of the hour that began last. claimed is false when another replica does it, or it has to
// wait.
func (s service) countSlot(ctx context.Context, now, slot time.Time) (claimed bool, err error) {
	key := domain.HourKey(slot)
	claim, claimed, err := s.jobs.Claim(ctx, jobKind, key, s.claim)
	if err != nil || !claimed {
		return claimed, err
	}
	unread, failed := s.count(ctx, now, slot)
	err = joined(s.requests.Maintain(ctx, s.retention), s.jobs.Forget(ctx, jobsKept), failed, s.announce(ctx, slot))
	return true, s.end(ctx, key, claim, err, unread, now.Sub(slot))
}

// end writes down how the job of an hour ended, and gives back why it failed. The hour is done when no project is
// unread; projects that stay unread for long are tried with growing pauses.
func (s service) end(ctx context.Context, key string, claim uuid.UUID, err, unread error, age time.Duration) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	switch {
	case err != nil:
		return errors.Join(err, s.jobs.Fail(ctx, jobKind, key, claim, err))
	case unread != nil && age < domain.SettleAfter:
		return errors.Join(ifRetryable(unread), s.jobs.Fail(ctx, jobKind, key, claim, unread))
	case unread != nil:
		return errors.Join(ifRetryable(unread), s.jobs.Postpone(ctx, jobKind, key, claim, unread, age/4))
	}
	return s.jobs.Done(ctx, jobKind, key, claim)
}

// ifRetryable is err if sending the event again may help, else nil: the log names what went wrong, and the next tick
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

// window lists the hours that may still be filled in, the oldest first.
func (s service) window(slot time.Time) []time.Time {
	return domain.Hours(slot, int(s.backfill/time.Hour))
}

// projects are those of the domains that are served, as far as the allow lists let them in.
func (s service) projects(ctx context.Context, cloud session) ([]domain.Project, error) {
	domains := s.domains
	if len(domains) == 0 {
		domains = []string{""} // all
	}
	var out []domain.Project
	for _, id := range domains {
		found, err := cloud.Projects(ctx, id)
		if err != nil {
			return nil, err
		}
		for _, p := range found {
			if s.allows(p.ID, p.DomainID) {
				out = append(out, p)
			}
		}
	}
	return out, nil
}

// announce writes the event of every hour of the window that has none yet, is known for the whole cloud and is
// settled. Who dies before this leaves it to the next hour's tick.
func (s service) announce(ctx context.Context, slot time.Time) error {
	known, err := s.stats.Settled(ctx, s.window(slot)[0], slot)
	if err != nil {
		return err
	}
	told, err := s.events.Announce(ctx, known)
	if told > 0 {
		slog.InfoContext(ctx, "hours were announced", "hours", told)
		s.wake("deliver-events")
	}
	return err
}
