package managed

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/flow"
)

// keepClaim renews the claim until stop is called. When it is lost, the context ends with the cause domain.ErrFenced.
func (r *round) keepClaim(ctx context.Context) (claimed context.Context, stop func()) {
	claimed, lose := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	renewing, end := context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		defer close(ended)
		for flow.Sleep(renewing, r.ClaimFor/4) {
			err := r.Store.RenewProject(renewing, r.claim, r.project.ProjectID, r.ClaimFor)
			if errors.Is(err, domain.ErrFenced) {
				lose(err)
				return
			}
		}
	}()
	return claimed, func() {
		end()
		<-ended
		lose(nil)
	}
}

// release releases the claim, with the time at which there is work again.
func (r *round) release(ctx context.Context) error {
	soon, dueIn := min(max(movingPause, r.listed), driftPause), scanPause
	if !r.isScan() {
		dueIn = min(dueIn, max(r.project.ScanAt.Sub(r.time()), soon))
	}
	for _, m := range r.resources {
		if m.plan.isMoving || r.isNews {
			dueIn = soon
		}
		if m.isLookedAt && !m.NextAt.IsZero() || !m.isReported() {
			dueIn = min(dueIn, driftPause)
		}
		for _, at := range []time.Time{m.plan.retryAt, m.NextAt} {
			if at.After(r.now) {
				dueIn = min(dueIn, max(at.Sub(r.time()), soon))
			}
		}
	}
	r.project.Problem = nil
	if r.problem == nil {
		r.project.Attempts = 0
		if r.isScan() {
			r.project.NextScanAt = r.now.Add(scanPause)
		}
	} else {
		slog.WarnContext(ctx, "a project of managed resources", "project_id", r.project.ProjectID, "error", r.problem)
		r.project.Attempts++
		r.project.Problem = domain.ProblemOf(r.problem)
		dueIn = min(dueIn, pauseAfter(r.project.Attempts)) // what others of the project do goes on
	}
	end, cancel := domain.Detached(ctx)
	defer cancel()
	return r.Store.ReleaseProject(end, r.claim, r.project, dueIn)
}
