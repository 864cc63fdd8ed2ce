package callbacks

import (
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
)

type listAnswer struct {
	Callbacks []callback `json:"callbacks"`
	Next      *string    `json:"next"`
}

type deliveriesAnswer struct {
	Deliveries []delivery `json:"deliveries"`
	Next       *string    `json:"next"`
}

// callback is a callback as its owner sees it.
type callback struct {
	ID           uuid.UUID             `json:"id"`
	URL          string                `json:"url"`
	Events       []string              `json:"events"`
	InstanceID   *uuid.UUID            `json:"instance_id,omitempty"`
	OrderID      *uuid.UUID            `json:"order_id,omitempty"`
	ConnectionID *uuid.UUID            `json:"connection_id,omitempty"`
	Status       domain.CallbackStatus `json:"status"`
	Reason       string                `json:"reason,omitempty"`
	Rate         int                   `json:"allowed_rate,omitempty"` // deliveries a minute
	Overlap      *time.Time            `json:"previous_secret_until,omitempty"`
	UserID       string                `json:"user_id"`
	CreatedAt    time.Time             `json:"created_at"`
	UpdatedAt    time.Time             `json:"updated_at"`
}

// withSecret is the one answer that shows the secret.
type withSecret struct {
	callback
	Secret string `json:"secret"`
}

func show(c domain.Callback) callback {
	return callback{
		ID: c.ID, URL: c.URL, Events: c.Events, InstanceID: orNil(c.InstanceID), OrderID: orNil(c.OrderID),
		ConnectionID: orNil(c.ConnectionID), Status: c.Status, Reason: c.Reason,
		Rate: c.AllowedRate, Overlap: orNever(c.PreviousUntil), UserID: c.UserID, CreatedAt: c.CreatedAt, UpdatedAt: c.UpdatedAt,
	}
}

type delivery struct {
	ID          uuid.UUID             `json:"id"`
	CallbackID  uuid.UUID             `json:"callback_id"`
	EventID     string                `json:"event_id"`
	EventType   string                `json:"event_type"`
	Subject     string                `json:"subject"`
	Status      domain.DeliveryStatus `json:"status"`
	Attempts    int                   `json:"attempts"`
	Answer      int                   `json:"answer,omitempty"` // the receiver's status
	Error       string                `json:"error,omitempty"`
	CreatedAt   time.Time             `json:"created_at"`
	AttemptedAt *time.Time            `json:"attempted_at,omitempty"`
}

func showDelivery(d domain.Delivery) delivery {
	return delivery{
		ID: d.ID, CallbackID: d.CallbackID, EventID: d.EventID, EventType: d.EventType, Subject: d.Subject, Status: d.Status,
		Attempts: d.Attempts, Answer: d.Answer, Error: d.Error, CreatedAt: d.CreatedAt, AttemptedAt: orNever(d.AttemptedAt),
	}
}

func orNil(id uuid.UUID) *uuid.UUID {
	if id == uuid.Nil {
		return nil
	}
	return &id
}

func orNever(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
