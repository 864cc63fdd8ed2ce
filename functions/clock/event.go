package clock

import (
	"context"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"

	"github.com/cloudfn/cloudfn/shared/eventx"
	"github.com/cloudfn/cloudfn/shared/flow"
)

// Handle wakes the functions that have something due, and plans those that have it before the next tick. The request of
// a tick keeps the pod until these are woken. That of another function is answered immediately: that function may have
// more to plan.
func (s *service) Handle(ctx context.Context, event cloudevents.Event) error {
	next := nextTick(time.Now())
	planned, err := s.plan(ctx)
	if err != nil || event.Type() != eventx.PingType {
		return err
	}
	flow.Await(ctx, time.Until(next), planned)
	return nil
}
