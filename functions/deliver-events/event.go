package deliverevents

import (
	"context"
	"errors"
	"sync"
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

// Handle delivers what is due, whatever has woken it. Once an hour it deletes old events meanwhile, within retireTime:
// no delivery waits for that.
func (s *service) Handle(ctx context.Context, _ cloudevents.Event) error {
	var chores sync.WaitGroup
	var failed error
	chores.Go(func() { failed = s.chores.Run(ctx) })
	err := s.Deliver(ctx)
	chores.Wait()
	return errors.Join(failed, err)
}
