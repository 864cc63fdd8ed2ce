package deliverevents

import (
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// How long pauses grow: of a receiver that gives no answer at all, and of a stream whose event it refuses.
const (
	longestSilence = time.Hour
	longestRefusal = 3 * time.Hour
	longestAsked   = 24 * time.Hour // by Retry-After
)

// outcomeOf is what follows from an attempt that failed. A receiver that gave no answer is left alone as a whole, and
// so is one that asks for it; one that refuses an event may well take those of other streams.
func outcomeOf(a domain.Attempt, got answer, err error) domain.Outcome {
	switch {
	case err != nil:
		// The stream waits by its own count, so that it is not the same event each time that tries a silent receiver.
		return domain.Outcome{
			Reason: reasonOf(err), Pause: domain.DeliveryPause(a.Tries+1, longestSilence),
			PauseAll: domain.DeliveryPause(a.Silences+1, longestSilence),
		}
	case got.busy:
		pause := min(got.pause, longestAsked)
		if pause == 0 {
			pause = domain.DeliveryPause(a.Tries+1, longestSilence)
		}
		return domain.Outcome{Answer: got.status, Reason: got.problem, Pause: pause, PauseAll: pause}
	}
	return domain.Outcome{
		Answer: got.status, Reason: got.problem, Gone: got.gone, Pause: domain.DeliveryPause(a.Tries+1, longestRefusal),
	}
}
