package collectstats

import (
	"context"
	"log/slog"

	cloudevents "github.com/cloudevents/sdk-go/v2"
)

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

// checkClock raises an alarm when periodic work is overdue: this function has a PingSource of its own, the others wait
// for the clock.
func (s service) checkClock(ctx context.Context) error {
	overdue, err := s.monitors.CheckClock(ctx)
	if overdue > 0 {
		slog.ErrorContext(ctx, "periodic work is overdue: no one wakes the functions; look at the function clock and "+
			"its PingSource", "overdue", overdue.String())
		s.wake("deliver-events")
	}
	return err
}
