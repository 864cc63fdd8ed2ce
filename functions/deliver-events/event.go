package deliverevents

import (
	"context"
	"errors"

	cloudevents "github.com/cloudevents/sdk-go/v2"

	"github.com/cloudfn/cloudfn/shared/eventx"
)

// Handle delivers what is due, after a tick and after a wake event. A tick also deletes old events.
func (s *service) Handle(ctx context.Context, event cloudevents.Event) error {
	var err error
	if event.Type() == eventx.PingType {
		err = s.events.Retire(ctx, s.retention)
	}
	return errors.Join(err, s.Deliver(ctx))
}
