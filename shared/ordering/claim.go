package ordering

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// ClaimFor is for how long a claim holds without being renewed: the order of a replica that died is free again after that. fence
// is for how long an unanswered create call keeps the next one for its instance back, which may be longer.
func ClaimFor(fence time.Duration) time.Duration { return min(fence, longestClaim) }

// hold renews the claim until stop is called, also when ctx has ended: a create call that is under way outlives it, and its answer is
// written under the claim. It cancels the context that it returns, with domain.ErrFenced as the cause, when the claim is over.
func (w Worker) hold(ctx context.Context, order domain.Order, claim domain.Claim) (held context.Context, stop func()) {
	held, lose := context.WithCancelCause(ctx)
	beating, end := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for pause(beating, ClaimFor(w.Claim)/5) {
			if err := w.Orders.Renew(beating, order, claim, ClaimFor(w.Claim)); errors.Is(err, domain.ErrFenced) {
				slog.WarnContext(ctx, "the claim on an order is over: another replica may work on it", "order_id", order.ID)
				lose(err)
				return
			}
		}
	}()
	return held, func() {
		end()
		<-ended
		lose(nil)
	}
}

// awaitCalls waits until Nova is done with the create calls of a replica that died: each has made its server, which is then
// adopted, or will not any more. When the time is up before that, the error is ErrOpen.
func (w Worker) awaitCalls(ctx context.Context, cloud Cloud, order domain.Order) (domain.Order, error) {
	for order.HasOpenCall() {
		if untilEnd(ctx) < lookAgain || !pause(ctx, lookAgain) {
			return order, ErrOpen
		}
		var err error
		if order, err = w.Observe(ctx, cloud, order); err != nil {
			return order, err
		}
	}
	return order, nil
}

// pause says whether the time went by before ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
