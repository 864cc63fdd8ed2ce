package deliverevents

import (
	"context"
	"errors"

	cloudevents "github.com/cloudevents/sdk-go/v2"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/eventx"
)

// countUnsigned records how many callbacks have secrets of keys that are not held.
func (s *service) countUnsigned(ctx context.Context) error {
	counts, err := s.outbox.DB.CallbackKeys(ctx)
	if err == nil {
		s.unsigned(ctx, domain.SecretsWithoutKey(counts, s.keys))
	}
	return err
}

// Handle delivers what is due, after a tick and after a wake event. A tick also deletes old events.
func (s *service) Handle(ctx context.Context, event cloudevents.Event) error {
	var err error
	if event.Type() == eventx.PingType {
		err = errors.Join(s.events.Retire(ctx, s.retention), s.countUnsigned(ctx))
	}
	return errors.Join(err, s.Deliver(ctx))
}
