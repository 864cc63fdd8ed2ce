package domain

import (
	"time"

	"github.com/google/uuid"
)

// CallbackStatus is whether a callback gets events.
type CallbackStatus string

// The statuses of a callback. Events wait for one that is pending or suspended; one that is gone gets none any more.
const (
	CallbackPending   CallbackStatus = "pending"   // its receiver has not consented yet
	CallbackVerified  CallbackStatus = "verified"  // it gets events
	CallbackSuspended CallbackStatus = "suspended" // by its owner, or because its receiver failed for too long
	CallbackGone      CallbackStatus = "gone"      // its receiver answered 410
)

// Callback is a URL that gets events: all of a project's, or those of one order or one instance.
type Callback struct {
	ID             uuid.UUID
	ProjectID      string
	UserID         string
	URL            string
	Events         []string  // types of events; none = all
	InstanceID     uuid.UUID // the zero UUID = any
	OrderID        uuid.UUID // the zero UUID = any
	Status         CallbackStatus
	Reason         string // why it is pending, suspended or gone, in our words
	Secret         []byte // sealed
	PreviousSecret []byte // sealed; signs too until PreviousUntil
	PreviousUntil  time.Time
	AllowedRate    int // deliveries a minute; 0 = any
	CreatedAt      time.Time
	UpdatedAt      time.Time
}

// DeliveryStatus is how far the delivery of one event to one callback has come.
type DeliveryStatus string

// The statuses of a delivery.
const (
	DeliveryDue       DeliveryStatus = "due"
	DeliveryDelivered DeliveryStatus = "delivered"
	DeliveryDead      DeliveryStatus = "dead" // given up; it can be delivered again by hand
)

// Delivery is one event on its way to one callback. What the receiver said is not kept, but for its status.
type Delivery struct {
	ID          uuid.UUID
	CallbackID  uuid.UUID
	EventID     string // <subject>:<seq>, the same on every try
	EventType   string
	Subject     string
	Status      DeliveryStatus
	Attempts    int
	Answer      int    // the status of the receiver's last answer; 0 = none came
	Error       string // what was wrong with the last attempt, in our words
	CreatedAt   time.Time
	AttemptedAt time.Time // zero = not yet
}
