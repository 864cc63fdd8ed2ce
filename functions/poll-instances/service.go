package pollinstances

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// The parts of the database that this function needs.
type (
	clock interface {
		Now(ctx context.Context) (time.Time, error)
	}
	jobStore interface {
		Claim(ctx context.Context, kind, key string, claimFor time.Duration) (claim uuid.UUID, held bool, err error)
		Renew(ctx context.Context, kind, key string, claim uuid.UUID, claimFor time.Duration) error
		Release(ctx context.Context, kind, key string, claim uuid.UUID) error
	}
	pollStore interface {
		Followed(ctx context.Context) ([]domain.Poll, error)
		Moving(ctx context.Context, within time.Duration) ([]domain.Poll, error)
		OfServers(ctx context.Context, servers []domain.Server) ([]domain.Instance, error)
		Unwanted(ctx context.Context, servers []domain.Server) ([]string, error)
		Doubtful(ctx context.Context, projects []string, limit int) ([]domain.Instance, error)
		Unseen(ctx context.Context, projects []string, before time.Time, seen []string) ([]domain.Instance, error)
		Silent(ctx context.Context, projectID string, since time.Time) ([]domain.Instance, error)
		Read(ctx context.Context, polls []domain.Poll) error
		Running(ctx context.Context) ([]domain.Order, error)
	}
	instanceStore interface {
		Change(ctx context.Context, known []domain.Instance) (told int, err error)
	}
)

type service struct {
	cloud     *sessions
	clock     clock
	jobs      jobStore
	polls     pollStore
	instances instanceStore
	orders    orderStore
	wake      func() // whoever delivers events

	full         time.Duration
	unknownAfter time.Duration
	followFor    time.Duration
	pause        time.Duration

	each     atomic.Bool // Nova does not let the account see the whole cloud: each project is read by itself
	readOnly sync.Map    // ids of projects in which the account may not act
}

const (
	jobKind = "poll-instances"
	jobKey  = "all"
	// A copy that dies keeps the others waiting for this long; one that lives says so in time.
	claimFor   = 20 * time.Second
	renewEvery = claimFor / 4
	endTimeout = 5 * time.Second

	parallel     = 4 // projects at once, when each has to be read by itself
	longestPause = 5 * time.Second
	// Nova may be at work on an instance for days, such as on a resize that nobody confirms. Looked at closely is only
	// what has changed within this time.
	movingFor = 10 * time.Minute
)

// Poll reads what changed, once, and then again for as long as Nova is at work on instances. While another copy does so it
// does nothing.
func (s *service) Poll(ctx context.Context) error {
	claim, held, err := s.jobs.Claim(ctx, jobKind, jobKey, claimFor)
	if err != nil || !held {
		return err
	}
	working, stop := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		stop(s.renew(working, claim))
	}()
	err = s.work(working)
	if errors.Is(context.Cause(working), domain.ErrFenced) {
		slog.WarnContext(ctx, "another copy polls: this one was held up for too long")
		err = nil
	}
	stop(nil)
	<-ended
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	return errors.Join(err, s.jobs.Release(ctx, jobKind, jobKey, claim))
}

// renew prolongs the claim until the work is over, or says why it cannot.
func (s *service) renew(ctx context.Context, claim uuid.UUID) error {
	for pause(ctx, renewEvery) {
		err := s.jobs.Renew(ctx, jobKind, jobKey, claim, claimFor)
		if errors.Is(err, domain.ErrFenced) {
			return err
		}
	}
	return nil
}

// pause says whether the time went by before ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (s *service) work(ctx context.Context) error {
	followed, err := s.polls.Followed(ctx)
	if err != nil {
		return err
	}
	err = errors.Join(s.round(ctx, followed, (*reader).read), s.attend(ctx))
	return errors.Join(err, s.follow(ctx))
}

// follow looks again, ever less often, while Nova is at work on instances.
func (s *service) follow(ctx context.Context) error {
	end := time.Now().Add(s.followFor)
	for wait := s.pause; time.Now().Add(wait).Before(end) && pause(ctx, wait); wait = min(wait*5/4, longestPause) {
		moving, err := s.polls.Moving(ctx, movingFor)
		if err != nil || len(moving) == 0 {
			return err
		}
		if err := errors.Join(s.round(ctx, moving, (*reader).changes), s.attend(ctx)); err != nil {
			return err
		}
	}
	return nil
}

// round reads the projects: all at once when Nova lets the account do that, else each with a session of its own. When Nova
// fails over the list of the whole cloud, for which one broken server suffices, each is read by itself, too. One that fails
// does not keep the others from being read.
func (s *service) round(ctx context.Context, projects []domain.Poll, read func(*reader, context.Context) error) error {
	if len(projects) == 0 {
		return nil
	}
	if !s.each.Load() {
		err := s.read(ctx, "", "", projects, read)
		switch apperr.CodeOf(err) {
		case apperr.Forbidden:
			slog.InfoContext(ctx, "the service account may not see the whole cloud: each project is read by itself")
			s.each.Store(true)
		case apperr.BadGateway:
			slog.WarnContext(ctx, "nova cannot list the whole cloud: each project is read by itself", "error", err)
		default:
			return err
		}
	}
	errs := make([]error, len(projects))
	var group errgroup.Group
	group.SetLimit(parallel)
	for n, p := range projects {
		group.Go(func() error {
			in := ""
			if s.each.Load() {
				in = p.ProjectID
			}
			errs[n] = s.read(ctx, in, p.ProjectID, []domain.Poll{p}, read)
			return nil
		})
	}
	_ = group.Wait() // the functions above never fail
	return again(errs)
}

// again is what of the errors may be over the next time. The others were logged, and nobody need send the event again.
func again(errs []error) error {
	var list []error
	for _, err := range errs {
		if err != nil && apperr.Retryable(err) {
			list = append(list, err)
		}
	}
	return errors.Join(list...)
}

// read reads one project, or all (projectID ""), with a session in a project, or with the account's own (in ""). What could
// not be read for too long is unknown.
func (s *service) read(ctx context.Context, in, projectID string, projects []domain.Poll, read func(*reader, context.Context) error) error {
	err := s.cloud.use(ctx, in, func(cloud session) error {
		return read(newReader(s, cloud, projectID, projects), ctx)
	})
	code := apperr.CodeOf(err)
	if err == nil || projectID == "" && (code == apperr.Forbidden || code == apperr.BadGateway) || errors.Is(ctx.Err(), context.Canceled) {
		return err
	}
	slog.ErrorContext(ctx, "servers could not be read", "project_id", projectID, "error", err)
	if ctx.Err() != nil { // a Nova that accepts requests and answers none has used up the time of the event
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
		defer cancel()
	}
	return errors.Join(err, s.silence(ctx, projects))
}

// silence marks the instances as unknown of projects that could not be read for too long, and of which nobody has heard
// otherwise. What Nova called their state last is kept.
func (s *service) silence(ctx context.Context, projects []domain.Poll) error {
	now, err := s.clock.Now(ctx)
	if err != nil {
		return err
	}
	long := now.Add(-s.unknownAfter)
	for _, p := range projects {
		if p.Since.After(long) || p.FullAt.After(long) { // all is read while a cell is down, although not all is known
			continue
		}
		silent, err := s.polls.Silent(ctx, p.ProjectID, long)
		if err != nil {
			return err
		}
		for n := range silent {
			silent[n].State, silent[n].SeenAt = domain.InstanceUnknown, now
		}
		if err := s.change(ctx, silent); err != nil {
			return err
		}
	}
	return nil
}

// change writes what is known of instances, and has it told.
func (s *service) change(ctx context.Context, known []domain.Instance) error {
	if len(known) == 0 {
		return nil
	}
	told, err := s.instances.Change(ctx, known)
	if told > 0 {
		s.wake()
	}
	return err
}
