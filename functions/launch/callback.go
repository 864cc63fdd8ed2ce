package launch

import (
	"context"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/webhook"
)

// callbackRequest is a callback that is to be made with an order.
type callbackRequest struct {
	URL    string         `json:"url"`
	Events []string       `json:"events"`
	Secret *domain.Secret `json:"secret"`
}

// shownCallback is an order's callback. Its secret is shown by the request that made it.
type shownCallback struct {
	ID     uuid.UUID             `json:"id"`
	Status domain.CallbackStatus `json:"status"`
	Secret string                `json:"secret,omitempty"`
}

// callbackStore is where it looks the order's callback up.
type callbackStore interface {
	Get(ctx context.Context, projectID string, id uuid.UUID) (domain.Callback, error)
	Some(ctx context.Context, projectID string, ids []uuid.UUID) ([]domain.Callback, error)
}

// sealer makes a secret readable for deliver-events only.
type sealer interface {
	Seal(purpose string, secret domain.Secret) ([]byte, error)
}

// guard refuses URLs that can never be a callback's.
type guard interface{ Check(url string) error }

// checkCallback refuses what can never be a callback, before anything is stored.
func (s service) checkCallback(req *callbackRequest) error {
	if req == nil {
		return nil
	}
	if err := s.guard.Check(req.URL); err != nil {
		return inside("callback", err)
	}
	if err := domain.CheckEventTypes("callback.events", req.Events); err != nil {
		return err
	}
	if req.Secret == nil {
		return nil
	}
	return inside("callback", webhook.CheckSecret(*req.Secret))
}

// inside names the fields of an error as they stand in an object of the request.
func inside(object string, err error) error {
	if err == nil {
		return nil
	}
	e := *apperr.As(err)
	e.Fields = slices.Clone(e.Fields)
	for n := range e.Fields {
		e.Fields[n].Field = object + "." + e.Fields[n].Field
	}
	e.Message = object + "." + strings.TrimPrefix(e.Message, object+".")
	return &e
}

// newCallback gives the order the callback that is to be made with it. It belongs to the caller's project, also when
// the order is in another one.
func (s service) newCallback(who domain.Identity, order *domain.Order, req *callbackRequest) (domain.Secret, error) {
	if req == nil {
		return "", nil
	}
	events := slices.Clone(req.Events)
	slices.Sort(events)
	c := domain.Callback{
		ID: uuid.Must(uuid.NewV7()), ProjectID: who.ProjectID, UserID: who.UserID, URL: req.URL, Events: slices.Compact(events), OrderID: order.ID,
		OfProject: order.ProjectID, ConnectionID: order.ConnectionID,
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

// callback reads the order's callback; nil when it has none, or none any more, or another project's.
func (s service) callback(ctx context.Context, who domain.Identity, order domain.Order) (*domain.Callback, error) {
	if order.Spec.CallbackID == nil {
		return nil, nil //nolint:nilnil // there is none
	}
	c, err := s.callbacks.Get(ctx, who.ProjectID, *order.Spec.CallbackID)
	switch {
	case apperr.CodeOf(err) == apperr.NotFound:
		return nil, nil //nolint:nilnil // its owner has deleted it
	case err != nil:
		return nil, err
	}
	return &c, nil
}
