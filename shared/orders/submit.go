package orders

import (
	"context"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// Submitted is the outcome of Submit.
type Submitted struct {
	Order      domain.Order // as it is stored
	IsFresh    bool         // it was not stored before
	WasWorked  bool         // this call has worked on it
	Unfinished error        // why that work stopped before its end
}

// Submit stores a new order and works on it. One that is stored already is resumed: what a replica that died has left
// undone is finished. Without a cloud the order is left to run-connections.
func (e Engine) Submit(ctx context.Context, s Session, order domain.Order) (out Submitted, err error) {
	claimFor := e.claimFor()
	if s.Cloud == nil {
		claimFor = 0
	}
	claim, err := e.Orders.Place(ctx, order, claimFor)
	if err != nil {
		return out, err
	}
	ctx = domain.Accepted(ctx)
	out.IsFresh, out.WasWorked = claim.Fresh, claim.Acquired
	switch {
	case claim.Acquired:
		e.Wake()
		if claim.Fresh { // as the database has it
			order.Status, order.CreatedAt, order.ReadAt = domain.OrderRunning, claim.At, claim.At
			order.CallsRecorded = true
		}
		out.Order, out.Unfinished, err = e.Run(ctx, s, order, claim)
	case s.Cloud == nil:
		out.Order, err = e.Orders.Get(ctx, order.ProjectID, order.ID)
		if err == nil && out.Order.Status == domain.OrderRunning {
			e.Wake()
		}
	default:
		out.Order, err = e.settle(ctx, s, order)
	}
	return out, err
}
