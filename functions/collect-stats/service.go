package collectstats

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// session is the part of OpenStack that this function needs, as the service account.
type session interface {
	census
	Projects(ctx context.Context, domainID string) ([]domain.Project, error)
	In(ctx context.Context, projectID string) (session, error)
}

// The parts of the database that this function needs.
type (
	clock interface {
		Now(ctx context.Context) (time.Time, error)
	}
	statStore interface {
		See(ctx context.Context, projects []domain.Project, first, last time.Time) error
		Known(ctx context.Context, from time.Time) (map[string]map[time.Time]bool, error)
		Insert(ctx context.Context, counts []domain.HourCount) error
		Series(ctx context.Context, v domain.View, first, last time.Time) ([]domain.HourStat, error)
	}
	jobStore interface {
		Claim(ctx context.Context, kind, key string, claimFor time.Duration) (claim uuid.UUID, held bool, err error)
		Done(ctx context.Context, kind, key string, claim uuid.UUID) error
		Fail(ctx context.Context, kind, key string, claim uuid.UUID, reason error) error
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
}

const (
	jobKind  = "collect-stats"
	parallel = 4 // projects at once, when each has to be asked for by itself
	// A job says that its hour's work was done. It is no use any more when nobody asks for that hour.
	jobsKept = 2 * maxBackfill
	// A job's end is written also when the time for its work is up; a database that hangs must not hold the copy.
	endTimeout = 5 * time.Second
)

// Collect does the work of the hour that began last, once, whatever number of ticks and copies want to.
func (s service) Collect(ctx context.Context) error {
	now, err := s.clock.Now(ctx)
	if err != nil {
		return err
	}
	slot := domain.Slot(now)
	key := domain.HourKey(slot)
	claim, held, err := s.jobs.Claim(ctx, jobKind, key, s.claim)
	if err != nil || !held {
		return err
	}
	return s.end(ctx, jobKind, key, claim, joined(
		s.requests.Maintain(ctx, s.retention), s.jobs.Forget(ctx, jobsKept), s.count(ctx, now, slot), s.announce(ctx, slot)))
}

// end writes down how a job ended, and gives back why it failed.
func (s service) end(ctx context.Context, kind, key string, claim uuid.UUID, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	if err != nil {
		return errors.Join(err, s.jobs.Fail(ctx, kind, key, claim, err))
	}
	return s.jobs.Done(ctx, kind, key, claim)
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

// count finds the hours that projects lack, up to slot, and fills them in.
func (s service) count(ctx context.Context, now, slot time.Time) error {
	cloud, err := s.login(ctx)
	if err != nil {
		return err
	}
	projects, err := s.projects(ctx, cloud)
	if err != nil {
		return err
	}
	hours := s.window(slot)
	if err := s.stats.See(ctx, projects, hours[0], slot); err != nil {
		return err
	}
	known, err := s.stats.Known(ctx, hours[0])
	if err != nil {
		return err
	}
	due := newTally(now)
	for _, p := range projects {
		for _, h := range hours {
			if !known[p.ID][h] {
				due.want(p, h)
			}
		}
	}
	if due.empty() {
		return nil
	}
	return s.fill(ctx, cloud, due)
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

// fill counts the whole cloud in one go when Nova lets the account do that, else project by project.
func (s service) fill(ctx context.Context, cloud session, due *tally) error {
	counts, err := due.count(ctx, cloud, "")
	if apperr.CodeOf(err) == apperr.Forbidden {
		return s.fillEach(ctx, cloud, due)
	}
	if err != nil {
		return err
	}
	return s.stats.Insert(ctx, counts)
}

// fillEach counts every project with a session of its own. One that fails stays missing, the others do not.
func (s service) fillEach(ctx context.Context, cloud session, due *tally) error {
	errs := make([]error, len(due.projects()))
	var group errgroup.Group
	group.SetLimit(parallel)
	for i, p := range due.projects() {
		group.Go(func() error {
			if errs[i] = s.fillOne(ctx, cloud, due.only(p)); errs[i] != nil {
				slog.ErrorContext(ctx, "a project could not be counted: its hours stay missing", "project_id", p.ID, "error", errs[i])
			}
			return nil
		})
	}
	_ = group.Wait() // the functions above never fail
	var again []error
	for _, err := range errs {
		if apperr.Retryable(err) && err != nil { // the next tick tries the others again, too
			again = append(again, err)
		}
	}
	return errors.Join(again...)
}

func (s service) fillOne(ctx context.Context, cloud session, due *tally) error {
	project := due.projects()[0]
	scoped, err := cloud.In(ctx, project.ID)
	if err != nil {
		return err
	}
	counts, err := due.count(ctx, scoped, project.ID)
	if err != nil {
		return err
	}
	return s.stats.Insert(ctx, counts)
}

// announce writes the event of every hour of the window that is known for the whole cloud and has none yet. Who dies
// before this leaves it to the next tick.
func (s service) announce(ctx context.Context, slot time.Time) error {
	series, err := s.stats.Series(ctx, domain.View{Scope: domain.ScopeCloud}, s.window(slot)[0], slot)
	if err != nil {
		return err
	}
	known := slices.DeleteFunc(series, func(h domain.HourStat) bool { return h.Source == domain.Missing })
	told, err := s.events.Announce(ctx, known)
	if told > 0 {
		slog.InfoContext(ctx, "hours were announced", "hours", told)
		s.wake("deliver-events")
	}
	return err
}
