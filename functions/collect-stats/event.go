package collectstats

import (
	"context"
	"log/slog"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"

	"github.com/cloudfn/cloudfn/shared/flow"
	"github.com/cloudfn/cloudfn/shared/obs"
)

// confirmAfter is how long after the first check a stopped clock is confirmed: a tick of the clock, and the start of
// the pods that it wakes.
const confirmAfter = 90 * time.Second

// Handle does what is due by the database's clock, whichever event woke it: a second delivery finds it done.
func (s service) Handle(ctx context.Context, _ cloudevents.Event) error {
	s.checkBudget(ctx)
	return joined(s.jobs.Register(ctx, jobKind, []string{recheckKey}), s.rows.DeleteUnusedLimits(ctx),
		s.suspendUnserved(ctx), s.Collect(ctx), s.checkClock(ctx))
}

// start suspends what projects have left that the lists do not let in any more: a new list comes with a new process.
func (s service) start(ctx context.Context) error {
	return joined(s.jobs.Register(ctx, jobKind, []string{recheckKey}), s.suspendUnserved(ctx))
}

// checkClock raises an alarm when periodic work is overdue, and still is some time later: this function has a
// PingSource of its own, the others wait for the clock. After a downtime of everything all work is overdue until the
// clock's first tick.
func (s service) checkClock(ctx context.Context) error {
	overdue, err := s.monitors.Overdue(ctx)
	if err != nil {
		return err
	}
	if overdue > 0 && !s.await(ctx) {
		return nil // the process ends, and the next event checks again
	}
	if overdue, err = s.monitors.CheckClock(ctx); overdue > 0 {
		slog.ErrorContext(ctx, "periodic work is overdue: no one wakes the functions; look at the function clock and "+
			"its PingSource", "overdue", overdue.String())
		s.wake("deliver-events")
	}
	return err
}

// awaitClock waits until the clock has to have worked, for half of the event's time at most. It is false when the
// process ends first.
func awaitClock(ctx context.Context) bool {
	pause := confirmAfter
	if deadline, ok := ctx.Deadline(); ok {
		pause = min(pause, time.Until(deadline)/2)
	}
	return flow.Await(ctx, pause, nil)
}

var recordLogGrowth = obs.Gauge("cloudfn.request_log.grown_bytes",
	"Bytes by which the request log and stored responses have grown within a day, with their indexes.")

// checkBudget raises an alarm when the request log and stored responses grow by more than their budget. A full disk
// would stop the API. It reports whether it did.
func (s service) checkBudget(ctx context.Context) (isOver bool) {
	grown, err := s.requests.Measure(ctx)
	if err != nil {
		slog.WarnContext(ctx, "the size of the request log could not be read", "error", err)
		return false
	}
	recordLogGrowth(ctx, grown)
	if grown <= s.budget {
		return false
	}
	slog.ErrorContext(ctx, "the request log and stored responses grow by more than REQUESTS_DAILY_MB: lower the "+
		"rate limits or REQUESTS_RETENTION, or give Postgres more space",
		"grown_bytes", grown, "budget_bytes", s.budget)
	return true
}

// suspendUnserved suspends what projects have left that the lists do not let in any more, and resumes what a changed
// list lets in again.
func (s service) suspendUnserved(ctx context.Context) error {
	remains, err := s.left.ListRemains(ctx)
	if err != nil {
		return err
	}
	ended, resumed, err := s.left.Set(ctx, s.unserved(remains))
	if err != nil {
		return err
	}
	for _, id := range ended {
		slog.WarnContext(ctx, "a project is not served any more: its callbacks and connections are suspended, and "+
			"nothing is done in it; `cloudfnd projects` ends what it has left", "project_id", id)
	}
	for _, id := range resumed {
		slog.WarnContext(ctx, "a project is served again, or has nothing left: what was suspended is resumed",
			"project_id", id)
	}
	if len(ended)+len(resumed) > 0 {
		s.wake("deliver-events", "run-connections")
	}
	return nil
}
