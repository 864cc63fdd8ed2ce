package launch

import (
	"context"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// listed is a page of orders, with what their caller sees with them.
type listed struct {
	related

	orders  []domain.Order
	hasMore bool
}

// List gives a page of the orders within reach, as they are stored.
func (s service) List(ctx context.Context, a access, q domain.OrderQuery) (page listed, err error) {
	q.Filter = a.Filter()
	limit := q.Limit
	q.Limit++
	found, err := s.orders.List(ctx, q)
	if err != nil {
		return page, err
	}
	page.hasMore = len(found) > limit
	for _, f := range found[:min(limit, len(found))] {
		if !f.Busy && !f.IsDelegated() {
			interrupt(f.Order)
		}
		page.orders = append(page.orders, f.Order)
	}
	page.related, err = s.relatedTo(ctx, a.Identity, page.orders...)
	return page, err
}

// interrupt gives each undecided instance the error that no replica works on it.
func interrupt(order domain.Order) {
	for n := range order.Instances {
		if i := &order.Instances[n]; !i.Decided() {
			i.Problem = &domain.Problem{
				Code:   "interrupted",
				Detail: "the launch was interrupted; send the same request with the same id again to finish it",
			}
		}
	}
}
