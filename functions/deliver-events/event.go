package deliverevents

import (
	"context"
	"errors"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"

	"github.com/cloudfn/cloudfn/shared/domain"
)

const (
	jobKind     = "deliver-events"
	retireEvery = time.Hour
	retireTime  = 2 * time.Minute
)

// countUnsigned records how many callbacks have secrets of keys that are not held.
func (s *service) countUnsigned(ctx context.Context) error {
	counts, err := s.outbox.DB.CallbackKeys(ctx)
	if err == nil {
		s.unsigned(ctx, domain.SecretsWithoutKey(counts, s.keys))
	}
	return err
}

// retire deletes old events.
func (s *service) retire(ctx context.Context) error {
	return errors.Join(s.events.Retire(ctx, s.retention), s.countUnsigned(ctx))
}

// start subscribes the operator's sink when the process starts: no event of the time before would wake this function
// for it.
func (s *service) start(ctx context.Context) error {
	return errors.Join(s.chores.Register(ctx), s.outbox.SetSink(ctx, s.sink, s.retention))
}

// Handle delivers what is due, whatever has woken it, and deletes old events once an hour.
func (s *service) Handle(ctx context.Context, _ cloudevents.Event) error {
	return errors.Join(s.chores.Run(ctx), s.Deliver(ctx))
}
