package domain

import (
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
)

// Event is something that happened, as it stands in the outbox.
type Event struct {
	ProjectID string // "" for what is the whole cloud's
	Subject   string
	Seq       int64 // counts a subject's events from 1
	Type      string
	At        time.Time // when it happened
	Data      []byte    // JSON
}

// Attempt is one try to deliver the event that is next in a stream, by the copy that holds the stream's claim.
//
// A stream is what a callback gets in order: the events of one subject, or a single one that is delivered again by hand.
type Attempt struct {
	Claim    uuid.UUID
	Callback Callback
	Stream   string
	Seq      int64 // the delivery's place in the stream
	Delivery uuid.UUID
	Tries    int // that failed before this one
	Silences int // how often in a row the callback's receiver gave no answer
	Event    Event
}

// Outcome is how an attempt failed.
type Outcome struct {
	Answer int    // the status that the receiver answered; 0 = no answer came
	Reason string // in our words
	// Pause is how long the stream is left alone, and PauseAll how long the callback as a whole is; 0 = not at all.
	Pause, PauseAll time.Duration
	Gone            bool // the receiver wants no event ever again
}

// DeliveryPause is how long to wait after the n-th failure in a row, counted from 1: 10 s, then twice as long each time up
// to longest, and up to a quarter less by chance, so that what failed together does not come back together.
func DeliveryPause(n int, longest time.Duration) time.Duration {
	const first = 10 * time.Second
	pause := longest
	if n = max(n, 1); n < 30 {
		pause = min(first<<(n-1), longest)
	}
	return pause - time.Duration(rand.Int64N(int64(pause)/4+1)) //nolint:gosec // chance, not a secret
}

// Room is for how many attempts a copy has room.
type Room struct {
	Failing     bool // for callbacks that gave no answer last time, instead of the others
	Attempts    int
	PerCallback int           // streams of one callback at once, in one copy
	Held        []HeldStreams // what the copy works on already
}

// HeldStreams is how many streams of a callback a copy works on.
type HeldStreams struct {
	ProjectID  string
	CallbackID uuid.UUID
	Streams    int
}
