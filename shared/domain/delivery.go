package domain

import (
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
)

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
	PerCallback int               // streams of one callback at once, in one copy
	InFlight    []StreamsInFlight // what the replica works on already
}

// StreamsInFlight is how many streams of a callback a replica works on.
type StreamsInFlight struct {
	ProjectID  string
	CallbackID uuid.UUID
	Streams    int
}
