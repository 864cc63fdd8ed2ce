package domain

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// CallbackStatus is whether a callback gets events.
type CallbackStatus string

// The statuses of a callback. While it is pending or suspended its events wait; while it is `gone` they are not
// delivered.
const (
	CallbackPending   CallbackStatus = "pending"   // its receiver has not consented yet
	CallbackVerified  CallbackStatus = "verified"  // it gets events
	CallbackSuspended CallbackStatus = "suspended" // by its owner, or because its receiver failed for too long
	CallbackGone      CallbackStatus = "gone"      // its receiver answered 410
)

// CallbackTransitions are the statuses that may follow each status of a callback.
var CallbackTransitions = map[CallbackStatus][]CallbackStatus{
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
	Events         []string  // event types; empty = all
	InstanceID     uuid.UUID // the zero UUID = any
	OrderID        uuid.UUID // the zero UUID = any
	OfProject      string    // the project whose events it gets: its own, or the connection's
	ConnectionID   uuid.UUID // only events caused through this connection; zero = all of its own project
	Status         CallbackStatus
	Reason         string   // why it is pending, suspended or gone
	Secret         []byte   // sealed
	PreviousSecret []byte   // sealed; signs too until PreviousUntil
	OlderSecrets   [][]byte // sealed; those before it, which sign as long
	PreviousUntil  time.Time
	AllowedRate    int // deliveries a minute; 0 = any
	Most           int // callbacks that its project may have in all; it is not stored
	CreatedAt      time.Time
	UpdatedAt      time.Time
}

// MaxCallbacks is the most callbacks for a project as a whole, and for each of its orders and instances. Those that are
// gone do not count.
const MaxCallbacks = 100

// MaxOlderSecrets is the most rotations of a callback that overlap with the last one.
const MaxOlderSecrets = 3

// SealedFor is the context that the callback's secrets are sealed with: they cannot be unsealed for another callback.
func (c Callback) SealedFor() string { return "callback/" + c.ProjectID + "/" + c.ID.String() }

// CallbackChange is a change by the callback's owner. Nil fields stay as they are.
type CallbackChange struct {
	URL    *string
	Events *[]string
	// Status is CallbackSuspended, or CallbackVerified, which requests the receiver's consent once more.
	Status *CallbackStatus
	Most   int // as in Callback
}

// Apply makes the change. needsConsent reports whether the receiver's consent must be requested immediately: for a new
// URL, or after the callback was suspended or gone.
func (c *Callback) Apply(change CallbackChange) (needsConsent bool, err error) {
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
	if next == c.Status { // verified again ends no pause of a pending one: its receiver may not have consented
		return next == CallbackPending && moved, nil
	}
	if !slices.Contains(CallbackTransitions[c.Status], next) {
		return false, apperr.New(apperr.Conflict, "the callback is %s: it cannot be %s", c.Status, next)
	}
	c.Status, c.Reason = next, ""
	if next == CallbackSuspended {
		c.Reason = "its owner has suspended it"
	}
	return next == CallbackPending, nil
}

// DeliveryStatus is the progress of delivering one event to one callback.
type DeliveryStatus string

// The statuses of a delivery.
const (
	DeliveryDue       DeliveryStatus = "due"
	DeliveryDelivered DeliveryStatus = "delivered"
	DeliveryDead      DeliveryStatus = "dead" // no more attempts; it can be redelivered by hand
)

// Delivery is the delivery of one event to one callback. Of the receiver's answers only the last status is kept.
type Delivery struct {
	ID          uuid.UUID
	CallbackID  uuid.UUID
	EventID     string // <subject>:<seq>, the same on every try
	EventType   string
	Subject     string
	Status      DeliveryStatus
	Attempts    int
	Answer      int    // the last HTTP status; 0 = no answer
	Error       string // of the last attempt
	CreatedAt   time.Time
	AttemptedAt time.Time // zero = not yet
}

// DeliveryQuery selects deliveries of a callback, the newest first.
type DeliveryQuery struct {
	Status DeliveryStatus // "" = all
	Limit  int
	Marker uuid.UUID // the last entry of the page before; zero = the first page
}

// DeliveryTransitions are the statuses that may follow each status of a delivery. Redelivering a dead one is a new
// delivery.
var DeliveryTransitions = map[DeliveryStatus][]DeliveryStatus{
	DeliveryDue:       {DeliveryDelivered, DeliveryDead},
	DeliveryDelivered: {},
	DeliveryDead:      {},
}

// Event is an event in the outbox.
type Event struct {
	ProjectID string // "" = the whole cloud
	Subject   string
	Seq       int64 // per subject, from 1
	Type      string
	At        time.Time // when it happened
	Data      []byte    // JSON
}

// Attempt is an attempt to deliver the next event of a stream, by the replica that holds the stream's claim. A stream
// is what a callback gets in order: the events of one subject, or one event that is redelivered by hand.
type Attempt struct {
	Claim    Claim
	Callback Callback
	Stream   string
	Seq      int64 // of the delivery in the stream
	Delivery uuid.UUID
	Tries    int // failed attempts before this one
	Silences int // consecutive attempts of the callback without an answer
	Event    Event
}

// Outcome is how an attempt failed.
type Outcome struct {
	Answer int // HTTP status; 0 = no answer
	Reason string
	// Pause delays the stream, and PauseAll all streams of the callback.
	Pause, PauseAll time.Duration
	Gone            bool // the receiver wants no more events
}

// DeliveryBackoff returns the pause after the n-th consecutive failure, from 1: 10 s, doubled each time up to longest,
// minus a jitter of up to a quarter.
func DeliveryBackoff(n int, longest time.Duration) time.Duration {
	const first = 10 * time.Second
	pause := longest
	if n = max(n, 1); n < 30 {
		pause = min(first<<(n-1), longest)
	}
	return pause - time.Duration(rand.Int64N(int64(pause)/4+1)) //nolint:gosec // jitter
}

// Room says how many attempts a replica can start.
type Room struct {
	Failing     bool // for callbacks without an answer last time; else for the others
	Attempts    int
	PerCallback int               // concurrent streams of one callback, in one copy
	InFlight    []StreamsInFlight // what the replica works on already
}

// StreamsInFlight is how many streams of a callback a replica works on.
type StreamsInFlight struct {
	ProjectID  string
	CallbackID uuid.UUID
	Streams    int
}
