package launch

import (
	"context"
	"slices"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/webhook"
)

// checkCallback rejects a URL or secret that can never work, before anything is stored.
func (s service) checkCallback(req *launchCallback) error {
	if req == nil {
		return nil
	}
	if err := s.guard.Check(string(req.URL)); err != nil {
		return ofCallback(err)
	}
	if req.Secret == nil {
		return nil
	}
	return ofCallback(webhook.CheckSecret(*req.Secret))
}

// ofCallback gives the fields of an error their paths in the request.
func ofCallback(err error) error {
	if err == nil {
		return nil
	}
	e := *apperr.As(err)
	e.Fields = slices.Clone(e.Fields)
	for n := range e.Fields {
		e.Fields[n].Field = "callback." + e.Fields[n].Field
	}
	e.Message = "callback." + e.Message
	return &e
}

// newCallback adds the requested callback to the order. It belongs to the caller's project, even if the order does not.
func (s service) newCallback(who domain.Identity, order *domain.Order, req *launchCallback) (domain.Secret, error) {
	if req == nil {
		return "", nil
	}
	events := slices.Clone(req.Events)
	slices.Sort(events)
	c := domain.Callback{
		ID: uuid.Must(uuid.NewV7()), ProjectID: who.ProjectID, UserID: who.UserID, URL: string(req.URL),
		Events: slices.Compact(events), OrderID: order.ID, OfProject: order.ProjectID, ConnectionID: order.ConnectionID,
		Most: s.mostCallbacks,
	}
	secret := value(req.Secret)
	if req.Secret == nil {
		secret = webhook.NewSecret()
	}
	var err error
	c.Secret, err = s.seal.Seal(c.SealedFor(), secret)
	order.Callback, order.Spec.CallbackID = &c, &c.ID
	return secret, err
}

// relatedTo reads what is shown with orders.
func (s service) relatedTo(
	ctx context.Context, who domain.Identity, orders ...domain.Order,
) (with related, err error) {
	if with.callbacks, err = s.callbacksOf(ctx, who, orders...); err != nil {
		return with, err
	}
	with.leases, err = s.leasesOf(ctx, orders...)
	return with, err
}

// callbacksOf reads the callbacks of orders by their ids, as far as they are stored and the caller's project's.
func (s service) callbacksOf(
	ctx context.Context, who domain.Identity, orders ...domain.Order,
) (map[uuid.UUID]domain.Callback, error) {
	var ids []uuid.UUID
	for _, o := range orders {
		if o.Spec.CallbackID != nil {
			ids = append(ids, *o.Spec.CallbackID)
		}
	}
	if len(ids) == 0 {
		return nil, nil //nolint:nilnil // like an empty map
	}
	found, err := s.callbacks.ListByIDs(ctx, who.ProjectID, ids)
	byID := make(map[uuid.UUID]domain.Callback, len(found))
	for _, c := range found {
		byID[c.ID] = c
	}
	return byID, err
}
