package collectstats

import (
	"context"

	cloudevents "github.com/cloudevents/sdk-go/v2"
)

// Handle does what is due by the database's clock, whichever tick woke it: a second delivery finds it done.
func (s service) Handle(ctx context.Context, _ cloudevents.Event) error {
	s.checkBudget(ctx)
	return joined(s.rows.DeleteUnusedLimits(ctx), s.suspendUnserved(ctx), s.Collect(ctx))
}
