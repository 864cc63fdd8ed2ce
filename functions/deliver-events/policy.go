package deliverevents

import (
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// The longest pauses: of a receiver that gives no answer, and of a stream whose event it rejects.
const (
	longestNoAnswer = time.Hour
	longestRejected = 3 * time.Hour
	longestBusy     = 24 * time.Hour // by Retry-After
)

// outcomeOf is what follows from an attempt that failed. A receiver that gave no answer, or requests a pause, gets no
// event during the pause. A receiver that rejects an event may accept those of other streams.
func outcomeOf(a domain.Attempt, got answer, err error) domain.Outcome {
	switch {
	case err != nil:
		// The stream pauses by its own count, so that other events try the receiver next.
		return domain.Outcome{
			Reason: reasonOf(err), Pause: domain.DeliveryBackoff(a.Tries+1, longestNoAnswer),
			PauseAll: domain.DeliveryBackoff(a.Silences+1, longestNoAnswer),
		}
	case got.busy:
		pause := min(got.pause, longestBusy)
		if pause == 0 {
			pause = domain.DeliveryBackoff(a.Tries+1, longestNoAnswer)
		}
		return domain.Outcome{Answer: got.status, Reason: got.problem, Pause: pause, PauseAll: pause}
	}
	return domain.Outcome{
		Answer: got.status, Reason: got.problem, Gone: got.gone,
		Pause: domain.DeliveryBackoff(a.Tries+1, longestRejected),
	}
}
