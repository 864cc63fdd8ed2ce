package domain

import (
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
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

// CallbackMoves are the statuses that may follow each status of a callback.
var CallbackMoves = map[CallbackStatus][]CallbackStatus{
	CallbackPending:   {CallbackVerified, CallbackSuspended},
	CallbackVerified:  {CallbackPending, CallbackSuspended, CallbackGone},
	CallbackSuspended: {CallbackPending},
	CallbackGone:      {CallbackPending},
}

// Callback is a URL that gets events: all of a project's, or those of one order or one instance.
type Callback struct {
	ID             uuid.UUID
	ProjectID      string
	UserID         string
	URL            string
	Events         []string  // types of events; none = all
	InstanceID     uuid.UUID // the zero UUID = any
	OrderID        uuid.UUID // the zero UUID = any
	OfProject      string    // whose events it gets: its own project's, or through a connection that one's
	ConnectionID   uuid.UUID // it gets only what happens through this connection; zero = all of its own project's
	Status         CallbackStatus
	Reason         string // why it is pending, suspended or gone, in our words
	Secret         []byte // sealed
	PreviousSecret []byte // sealed; signs too until PreviousUntil
	PreviousUntil  time.Time
	AllowedRate    int // deliveries a minute; 0 = any
	CreatedAt      time.Time
	UpdatedAt      time.Time
}

// MaxCallbacks is how many callbacks there may be for all of a project, and for each of its orders and instances, without
// those that are gone.
const MaxCallbacks = 100

// SealedFor is the purpose that the callback's secrets are sealed for: they open for no other callback.
func (c Callback) SealedFor() string { return "callback/" + c.ProjectID + "/" + c.ID.String() }

// CallbackChange is what its owner wants to change of a callback. What is nil stays.
type CallbackChange struct {
	URL    *string
	Events *[]string
	// Status is CallbackSuspended, or CallbackVerified: then the receiver is asked for its consent again.
	Status *CallbackStatus
}

// Apply makes the change. asks says that the receiver has to be asked for its consent, at once; a receiver that has
// consented is asked again only when the URL is another, or after the callback was suspended or gone.
func (c *Callback) Apply(change CallbackChange) (asks bool, err error) {
	moved := change.URL != nil && *change.URL != c.URL
	if moved {
		c.URL = *change.URL
	}
	if change.Events != nil {
		c.Events = *change.Events
	}
	next := c.Status
	switch {
	case change.Status != nil && *change.Status == CallbackSuspended:
		next = CallbackSuspended
	case change.Status != nil && c.Status != CallbackVerified, moved && c.Status != CallbackSuspended:
		next = CallbackPending
	}
	if next == c.Status {
		return next == CallbackPending && (moved || change.Status != nil), nil
	}
	if !slices.Contains(CallbackMoves[c.Status], next) {
		return false, apperr.New(apperr.Conflict, "the callback is %s: it cannot be %s", c.Status, next)
	}
	c.Status, c.Reason = next, ""
	if next == CallbackSuspended {
		c.Reason = "its owner has suspended it"
	}
	return next == CallbackPending, nil
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

// DeliveryQuery selects deliveries of a callback, the newest first.
type DeliveryQuery struct {
	Status DeliveryStatus // "" = all
	Limit  int
	Marker uuid.UUID // the last that was already seen; zero = from the newest
}
