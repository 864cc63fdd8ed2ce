package connections

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

const (
	// Check waits so long for the result, and reads it so often.
	checkWait = 10 * time.Second
	checkPoll = 250 * time.Millisecond
	// recheckAfter is the Retry-After of a check that takes longer.
	recheckAfter = 5 * time.Second
)

// Check lets run-connections check that Keystone still accepts the delegation, and waits for the result: only
// run-connections can decrypt delegated credentials. works is nil when the result is not there in time.
func (s service) Check(
	ctx context.Context, who domain.Identity, id uuid.UUID,
) (c domain.Connection, works *bool, err error) {
	if c, err = s.connections.Get(ctx, who, id); err != nil {
		return c, nil, err
	}
	if !c.Owned(who) {
		domain.RecordConnection(ctx, c)
	}
	since, err := s.connections.RequestCheck(ctx, c.ProjectID, id)
	if err != nil {
		return c, nil, err
	}
	s.wake("run-connections")
	for end := time.Now().Add(checkWait); ; {
		if c, err = s.connections.Get(ctx, who, id); err != nil {
			return c, nil, err
		}
		if works, err = s.checked(ctx, c, since); works != nil || err != nil || time.Now().After(end) {
			return c, works, err
		}
		select {
		case <-time.After(checkPoll):
		case <-ctx.Done():
			return c, nil, nil
		}
	}
}

// checked reports whether a connection works, by a check since the moment; nil when there was none.
func (s service) checked(ctx context.Context, c domain.Connection, since time.Time) (works *bool, err error) {
	yes, no := true, false
	switch {
	case !c.Status.IsOpen():
		return &no, nil
	case !c.CheckedAt.Before(since):
		return &yes, nil
	}
	failed, why, err := s.connections.FailedCheck(ctx, c.ProjectID, c.ID)
	if err != nil || failed.Before(since) {
		return nil, err
	}
	away := apperr.New(apperr.Unavailable, "the delegation could not be checked, because its cloud does not answer: %s",
		why)
	away.RetryAfter = recheckAfter
	return nil, away
}
