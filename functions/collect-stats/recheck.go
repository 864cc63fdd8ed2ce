package collectstats

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/due"
)

// recheckDue checks undecided servers again: their logs may be whole now. claimed is false when another replica does
// it.
func (s service) recheckDue(ctx context.Context, now, slot time.Time) (claimed bool, err error) {
	claim, err := s.jobs.Claim(ctx, jobKind, recheckKey, s.claim)
	if err != nil || !claim.Acquired {
		return false, err
	}
	err = joined(s.recheck(ctx, now, slot), s.announce(ctx, slot))
	ctx, cancel := domain.Detached(ctx)
	defer cancel()
	if err != nil {
		return true, errors.Join(err, s.jobs.Fail(ctx, jobKind, recheckKey, claim, err))
	}
	return true, s.jobs.Release(ctx, jobKind, recheckKey, claim)
}

// recheck reads what changed since the oldest hour with undecided servers that is due, and the logs of these servers
// only. A server that Nova no longer has in its database is counted no more.
func (s service) recheck(ctx context.Context, now, slot time.Time) error {
	counts, err := s.stats.Undecided(ctx, s.window(slot)[0])
	if err != nil || len(counts) == 0 {
		return err
	}
	t := newCounter(now, s.refine(now))
	for _, c := range counts {
		t.add(undecided(c))
	}
	cloud, err := s.login(ctx)
	if err != nil {
		return err
	}
	if err = t.reread(ctx, cloud, ""); apperr.CodeOf(err) == apperr.Forbidden {
		return s.recheckEach(ctx, now, cloud, t, counts)
	}
	return err
}

// undecided is a stored row as it is counted again: only its undecided servers are.
func undecided(c domain.HourCount) *entry {
	r := &entry{HourCount: c, before: map[string]bool{}}
	for _, id := range c.Undecided {
		r.before[id] = true
	}
	r.Undecided = nil
	return r
}

// reread reads what changed and the logs that the rows wait for. A server of a cell that is down would pass for one
// that Nova no longer has, so all cells must answer before and after.
func (t *counter) reread(ctx context.Context, cloud census, projectID string) error {
	if err := cloud.CellsUp(ctx, projectID); err != nil {
		return err
	}
	if err := t.read(ctx, cloud, projectID, t.oldest()); err != nil {
		return err
	}
	return t.resolve(ctx, cloud)
}

// recheckEach checks project by project. A project that cannot be read keeps its counts, and is tried with growing
// pauses.
func (s service) recheckEach(
	ctx context.Context, now time.Time, cloud session, t *counter, counts []domain.HourCount,
) error {
	var mu sync.Mutex
	read := map[string]bool{}
	err := s.eachProject(ctx, cloud, t, func(ctx context.Context, scoped session, id string, one *counter) error {
		err := one.reread(ctx, scoped, id)
		mu.Lock()
		defer mu.Unlock()
		read[id] = err == nil
		return err
	})
	if ctx.Err() != nil {
		return err // the next event continues
	}
	var kept []*entry
	for _, c := range counts {
		if r := undecided(c); !read[c.ProjectID] {
			r.Undecided = c.Undecided
			r.Schedule(now)
			kept = append(kept, r)
		}
	}
	return joined(err, s.refine(now)(ctx, kept))
}

// refine stores rows whose servers were checked again.
func (s service) refine(now time.Time) func(context.Context, []*entry) error {
	return func(ctx context.Context, rows []*entry) error {
		var refined []domain.RefinedCount
		for _, r := range rows {
			if r.skipped && len(r.Undecided) == len(r.before) {
				continue // it stays due as it is
			}
			if len(r.Undecided) < len(r.before) && domain.SourceAt(r.Hour, now) == domain.Rebuilt {
				r.Source = domain.Rebuilt
			}
			refined = append(refined, domain.RefinedCount{HourCount: r.HourCount, Before: len(r.before)})
		}
		if len(refined) == 0 {
			return nil
		}
		return s.stats.Refine(ctx, refined)
	}
}

// scheduleRecheck has the clock wake this function when undecided servers are due for a check.
func (s service) scheduleRecheck(ctx context.Context) error {
	ctx, cancel := domain.Detached(ctx)
	defer cancel()
	now, err := s.db.Now(ctx)
	if err != nil {
		return err
	}
	slot := domain.Slot(now)
	_, at, err := s.stats.Due(ctx, jobKind, domain.HourKey(slot), s.window(slot)[0])
	if err != nil {
		return err
	}
	next := due.Next{In: at.Sub(now), Never: at.IsZero()}
	if next.In <= 0 { // nothing came of the check
		next.In = time.Minute
	}
	return s.jobs.Schedule(ctx, jobKind, recheckKey, next)
}
