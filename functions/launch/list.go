package launch

import (
	"context"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// listed is an order of a list, with the callback that its caller sees with it.
type listed struct {
	order    domain.Order
	callback *domain.Callback
}

// List gives a page of the orders within reach, as they are stored; more says that there is another.
func (s service) List(ctx context.Context, a access, q domain.OrderQuery) (page []listed, more bool, err error) {
	q.Filter = a.Filter()
	limit := q.Limit
	q.Limit++
	found, err := s.orders.List(ctx, q)
	if err != nil {
		return nil, false, err
	}
	more = len(found) > limit
	found = found[:min(limit, len(found))]
	callbacks, err := s.callbacksOf(ctx, a.Identity, found)
	if err != nil {
		return nil, false, err
	}
	page = make([]listed, len(found))
	for n, f := range found {
		if !f.Busy && !f.IsDelegated() {
			interrupt(f.Order)
		}
		page[n].order = f.Order
		if id := f.Spec.CallbackID; id != nil {
			page[n].callback = callbacks[*id]
		}
	}
	return page, more, nil
}

// callbacksOf reads the callbacks of orders, as far as they are there and the caller's project's.
func (s service) callbacksOf(ctx context.Context, who domain.Identity, orders []domain.ListedOrder) (map[uuid.UUID]*domain.Callback, error) {
	var ids []uuid.UUID
	for _, o := range orders {
		if o.Spec.CallbackID != nil {
			ids = append(ids, *o.Spec.CallbackID)
		}
	}
	if len(ids) == 0 {
		return nil, nil //nolint:nilnil // there is none
	}
	found, err := s.callbacks.Some(ctx, who.ProjectID, ids)
	byID := make(map[uuid.UUID]*domain.Callback, len(found))
	for n := range found {
		byID[found[n].ID] = &found[n]
	}
	return byID, err
}

// interrupt shows of instances that were not asked for to the end that nobody works on them.
func interrupt(order domain.Order) {
	for n := range order.Instances {
		if i := &order.Instances[n]; !i.Decided() {
			i.Problem = &domain.Problem{Code: "interrupted", Detail: "the launch was interrupted; send the same request with the same id again to finish it"}
		}
	}
}
