package orders

import (
	"context"
	"errors"
	"log/slog"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// hold renews the claim until stop is called, also when ctx has ended: a create call that is under way outlives it, and
// its answer is written under the claim. It cancels the context that it returns, with domain.ErrFenced as the cause,
// when the claim is over.
func (e Engine) hold(ctx context.Context, order domain.Order, claim domain.Claim) (held context.Context, stop func()) {
	held, lose := context.WithCancelCause(ctx)
	beating, end := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for domain.Pause(beating, e.claimFor()/5) {
			if err := e.Orders.Renew(beating, order, claim, e.claimFor()); errors.Is(err, domain.ErrFenced) {
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

// awaitCalls waits until Nova is done with the create calls of a replica that died: each has made its server, which is
// then adopted, or will not any more. When the time is up before that, the error is ErrOpen.
func (e Engine) awaitCalls(ctx context.Context, cloud Cloud, order domain.Order) (domain.Order, error) {
	for order.HasOpenCall() {
		if untilEnd(ctx) < observePause || !domain.Pause(ctx, observePause) {
			return order, ErrOpen
		}
		var err error
		if order, err = e.Observe(ctx, cloud, order); err != nil {
			return order, err
		}
	}
	return order, nil
}
