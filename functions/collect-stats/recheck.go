package collectstats

import (
	"context"
	"errors"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

// recheckDue checks undecided servers again: their logs may be whole now. held is false when another replica does it.
func (s service) recheckDue(ctx context.Context, now, slot time.Time) (held bool, err error) {
	claim, held, err := s.jobs.Claim(ctx, jobKind, recheckKey, s.claim)
	if err != nil || !held {
		return held, err
	}
	if err = s.recheck(ctx, now, slot); err == nil {
		err = s.announce(ctx, slot)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	if err != nil {
		return true, errors.Join(err, s.jobs.Fail(ctx, jobKind, recheckKey, claim, err))
	}
	return true, s.jobs.Release(ctx, jobKind, recheckKey, claim)
}

// recheck reads what changed since the oldest hour with undecided servers that is due, and the logs of these servers only. One
// that Nova no longer has in its database is counted no more.
func (s service) recheck(ctx context.Context, now, slot time.Time) error {
	counts, err := s.stats.Undecided(ctx, s.window(slot)[0])
	if err != nil || len(counts) == 0 {
		return err
	}
	t := newTally(now, s.refine(now))
	for _, c := range counts {
		r := &entry{HourCount: c, before: map[string]bool{}}
		for _, id := range c.Undecided {
			r.before[id] = true
		}
		r.Undecided = nil
		t.add(r)
	}
	cloud, err := s.login(ctx)
	if err != nil {
		return err
	}
	err = t.read(ctx, cloud, "", t.oldest())
	if apperr.CodeOf(err) != apperr.Forbidden {
		if err != nil {
			return err
		}
		return t.resolve(ctx, cloud)
	}
	return eachProject(ctx, cloud, t, func(ctx context.Context, scoped session, id string, one *tally) error {
		if err := one.read(ctx, scoped, id, one.oldest()); err != nil {
			return err
		}
		return one.resolve(ctx, scoped)
	})
}

// refine stores rows of which servers were checked again.
func (s service) refine(now time.Time) func(context.Context, []*entry) error {
	return func(ctx context.Context, rows []*entry) error {
		var refined []postgres.Refined
		for _, r := range rows {
			if r.skipped && len(r.Undecided) == len(r.before) {
				continue // it stays due as it is
			}
			if len(r.Undecided) < len(r.before) && domain.SourceAt(r.Hour, now) == domain.Rebuilt {
				r.Source = domain.Rebuilt
			}
			refined = append(refined, postgres.Refined{HourCount: r.HourCount, Before: len(r.before)})
		}
		if len(refined) == 0 {
			return nil
		}
		return s.stats.Refine(ctx, refined)
	}
}
