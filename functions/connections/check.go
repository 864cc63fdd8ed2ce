package connections

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

const (
	// A check is waited for so long, and looked for as often.
	checkWait = 10 * time.Second
	checkPoll = 250 * time.Millisecond
	// recheckAfter is when it makes sense to ask again after that.
	recheckAfter = 5 * time.Second
)

// Check has run-connections ask Keystone whether it still accepts the delegation, and waits for the answer: this function cannot open what
// is delegated. works is nil when there was none in time.
func (s service) Check(ctx context.Context, who domain.Identity, id uuid.UUID) (c domain.Connection, works *bool, err error) {
	if c, err = s.Get(ctx, who, id); err != nil {
		return c, nil, err
	}
	if !c.Owned(who) {
		domain.ActThrough(ctx, c)
	}
	since, err := s.RequestCheck(ctx, c.ProjectID, id)
	if err != nil {
		return c, nil, err
	}
	s.wake("run-connections")
	for end := time.Now().Add(checkWait); ; {
		if c, err = s.Get(ctx, who, id); err != nil {
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

// checked says whether a connection works, as far as is known since a moment.
func (s service) checked(ctx context.Context, c domain.Connection, since time.Time) (works *bool, err error) {
	yes, no := true, false
	switch {
	case c.Status != domain.ConnectionActive:
		return &no, nil
	case !c.CheckedAt.Before(since):
		return &yes, nil
	}
	failed, why, err := s.FailedCheck(ctx, c.ProjectID, c.ID)
	if err != nil || failed.Before(since) {
		return nil, err
	}
	away := apperr.New(apperr.Unavailable, "nothing is known of the delegation, because its cloud was asked and gave no answer: %s", why)
	away.RetryAfter = recheckAfter
	return nil, away
}
