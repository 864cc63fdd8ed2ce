package deliverevents

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/due"
	"github.com/cloudfn/cloudfn/shared/flow"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

// answer is what a receiver said to an event.
type answer struct {
	status  int
	taken   bool
	gone    bool          // it never wants an event again
	busy    bool          // it requests a pause
	pause   time.Duration // 0 = of any length
	problem string        // "" when it took the event
}

// consent is a receiver's answer to the handshake.
type consent struct {
	given  bool
	rate   int    // deliveries a minute; 0 = any
	reason string // why it was not given
}

type service struct {
	chores    *due.Chores
	outbox    postgres.Outbox
	events    postgres.Events
	sender    sender
	sink      bool
	retention time.Duration
	claim     time.Duration // longer than an attempt
	pool      *pool
	keys      []string                     // ids of the keys that are held
	unsigned  func(context.Context, int64) // records how many callbacks have secrets of other keys
	runs      flow.Gate
}

const (
	inARow      = 20                     // deliveries of one stream before other streams get a slot
	perCallback = 8                      // concurrent streams of one callback
	handshakes  = 20                     // claimed together
	shortPause  = 30 * time.Millisecond  // between two claims, so that each claims several streams
	longPause   = 500 * time.Millisecond // until the next claim when nothing happens in this replica
)

// Deliver sends due events to their receivers, and waits for those that are due soon: the request that it works for
// keeps a Knative pod alive. The clock has it woken for what is due later. One call at a time in a process works, one
// waits to continue, and others return immediately. Each makes the working one claim immediately.
func (s *service) Deliver(ctx context.Context) error {
	s.pool.wake()
	leave, err := s.runs.Enter(ctx)
	if leave == nil {
		return err
	}
	var attempts sync.WaitGroup
	defer attempts.Wait()
	defer leave() // before the last attempts have ended: the next call need not wait for them
	if err := errors.Join(s.outbox.SetSink(ctx, s.sink, s.retention), s.outbox.AbandonGone(ctx)); err != nil {
		return err
	}
	working, cancel := s.working(ctx)
	defer cancel()
	for working.Err() == nil {
		err := s.claimDue(ctx, working, &attempts)
		if err == nil && s.pool.empty() {
			var isDue bool
			if isDue, err = s.awaitDue(working); err == nil && !isDue {
				return nil
			}
		} else if err == nil && !s.pool.wait(working, longPause) {
			return nil
		}
		if err != nil && working.Err() == nil {
			return err
		}
	}
	return nil
}

// working ends before ctx does, so that the last attempts that begin have the time to end.
func (s *service) working(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, _ := ctx.Deadline()
	left := time.Until(deadline)
	return context.WithTimeout(ctx, max(left-s.claim, left/2))
}

// awaitDue waits after a claim until it pays to claim again. It is false when nothing will be due soon, or before the
// time for work ends.
func (s *service) awaitDue(working context.Context) (bool, error) {
	deadline, _ := working.Deadline()
	for isFirst := true; ; isFirst = false {
		next, isPending, err := s.outbox.NextDue(working, min(time.Until(deadline), due.Soon))
		switch {
		case err != nil || !isPending:
			return false, err
		case next <= 0 && isFirst: // just written, or its callback has as many attempts in another replica as it may
			return s.pool.wait(working, longPause), nil
		case next <= 0:
			return true, nil
		case !s.pool.wait(working, min(next, longPause)):
			return false, nil
		}
	}
}

// claimDue begins the attempts that are due, as far as slots are free.
func (s *service) claimDue(ctx, working context.Context, attempts *sync.WaitGroup) error {
	fast, slow := s.pool.free()
	for _, room := range []domain.Room{{Attempts: fast}, {Attempts: slow, Failing: true}} {
		if room.Attempts == 0 {
			continue
		}
		room.PerCallback, room.InFlight = perCallback, s.pool.inFlightOf()
		claimed, err := s.outbox.Claim(working, room, s.claim)
		if err != nil {
			return err
		}
		for _, a := range claimed {
			slot := s.pool.take(a.Callback, room.Failing)
			attempts.Go(func() { s.stream(ctx, working, a, slot) })
		}
	}
	return s.claimPending(ctx, working, attempts)
}

// claimPending begins the handshakes that are due.
func (s *service) claimPending(ctx, working context.Context, attempts *sync.WaitGroup) error {
	_, slow := s.pool.free()
	if slow == 0 {
		return nil
	}
	pending, err := s.outbox.ClaimHandshakes(working, min(slow, handshakes), s.claim)
	for _, a := range pending {
		slot := s.pool.take(a.Callback, true)
		attempts.Go(func() {
			defer slot.release()
			s.verify(ctx, a)
		})
	}
	return err
}

// stream delivers the events of a stream, as long as its receiver answers quickly and other streams need not wait for
// too long.
func (s *service) stream(ctx, working context.Context, a domain.Attempt, slot *slot) {
	defer slot.release()
	for n := 1; ; n++ {
		next := s.attempt(ctx, a, func() bool {
			return n < inARow && working.Err() == nil && !slot.isSlow() && a.Callback.AllowedRate == 0
		})
		if next == nil {
			return
		}
		a = *next
	}
}

// attempt makes one attempt and records its outcome. It gives the stream's next attempt when mayContinue says so.
func (s *service) attempt(ctx context.Context, a domain.Attempt, mayContinue func() bool) (next *domain.Attempt) {
	got, err := s.sender.Send(ctx, a)
	switch {
	case err != nil && ctx.Err() != nil: // this replica ends: it was no attempt
		s.write(ctx, a, func(ctx context.Context) error { return s.outbox.Release(ctx, a) })
	case err == nil && got.taken:
		s.write(ctx, a, func(ctx context.Context) (err error) {
			next, err = s.outbox.MarkDelivered(ctx, a, got.status, mayContinue(), s.claim)
			return err
		})
	default:
		if unsigned, is := errors.AsType[unsignedError](err); is {
			s.postpone(ctx, a, unsigned)
			return nil
		}
		s.fail(ctx, a, outcomeOf(a, got, err))
	}
	return next
}

// keyPause is the time until a callback is tried again whose secret cannot be decrypted.
const keyPause = 5 * time.Minute

// postpone leaves an event due that cannot be signed: a lost key is the operator's fault, so it suspends no callback.
func (s *service) postpone(ctx context.Context, a domain.Attempt, why unsignedError) {
	slog.ErrorContext(ctx, "an event cannot be signed: add the key to SEAL_PRIVATE_KEY, or have the callback's secret "+
		"rotated; `cloudfnd keys status` shows which keys are missing", "project_id", a.Callback.ProjectID,
		"callback_id", a.Callback.ID, "error", why)
	s.write(ctx, a, func(ctx context.Context) error {
		return s.outbox.Postpone(ctx, a, keyPause,
			"waits for the operator: the secret that signs it cannot be decrypted")
	})
}

func (s *service) fail(ctx context.Context, a domain.Attempt, f domain.Outcome) {
	log := slog.With("project_id", a.Callback.ProjectID, "callback_id", a.Callback.ID, "host", hostOf(a.Callback.URL),
		"subject", a.Event.Subject, "seq", a.Event.Seq)
	log.InfoContext(ctx, "delivery failed", "answer", f.Answer, "reason", f.Reason, "tries", a.Tries+1,
		"pause", f.Pause,
		"pause_all", f.PauseAll)
	s.write(ctx, a, func(ctx context.Context) error {
		dead, status, err := s.outbox.MarkFailed(ctx, a, f, tryFor)
		if dead {
			log.WarnContext(ctx, "delivery abandoned")
		}
		if status == domain.CallbackGone || status == domain.CallbackSuspended {
			log.WarnContext(ctx, "callback ended", "status", status)
		}
		return err
	})
	if f.Gone {
		s.write(ctx, a, s.outbox.AbandonGone)
	}
}

// verify asks a callback's receiver for its consent, and records the answer.
func (s *service) verify(ctx context.Context, a domain.Attempt) {
	got, err := s.sender.Handshake(ctx, a.Callback)
	if err != nil && ctx.Err() != nil {
		return // the claim expires
	}
	if err != nil {
		got.reason = "handshake: " + reasonOf(err)
	}
	log := slog.With("project_id", a.Callback.ProjectID, "callback_id", a.Callback.ID, "host", hostOf(a.Callback.URL))
	s.write(ctx, a, func(ctx context.Context) error {
		if got.given {
			log.InfoContext(ctx, "callback verified", "rate", got.rate)
			return s.outbox.MarkVerified(ctx, a, got.rate)
		}
		status, err := s.outbox.MarkUnverified(ctx, a, got.reason, domain.DeliveryBackoff(a.Tries+1, longestNoAnswer),
			tryFor)
		log.InfoContext(ctx, "callback not verified", "reason", got.reason, "status", status)
		return err
	})
}

// An outcome is also recorded when the time for the work is up, or Postgres is unavailable for a moment. writeTime is
// less than claimSlack.
const (
	writeTime  = 4 * time.Second
	writePause = 300 * time.Millisecond
)

func (s *service) write(ctx context.Context, a domain.Attempt, end func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTime)
	defer cancel()
	for {
		err := end(ctx)
		if err == nil {
			return
		}
		isTransient := !errors.Is(err, domain.ErrFenced) && apperr.Retryable(err)
		if !isTransient || !flow.Sleep(ctx, writePause) {
			slog.WarnContext(ctx, "the outcome of an attempt could not be recorded: the attempt may be repeated",
				"callback_id", a.Callback.ID, "subject", a.Event.Subject, "seq", a.Event.Seq, "error", err)
			return
		}
	}
}

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
