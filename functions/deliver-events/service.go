package deliverevents

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// The parts of the database, and of the world outside, that this function needs.
type (
	outbox interface {
		Claim(ctx context.Context, room domain.Room, claimFor time.Duration) ([]domain.Attempt, error)
		Delivered(ctx context.Context, a domain.Attempt, answer int, goOn bool, claimFor time.Duration) (next *domain.Attempt, err error)
		Failed(ctx context.Context, a domain.Attempt, f domain.Outcome, giveUp time.Duration) (dead bool, status domain.CallbackStatus, err error)
		Release(ctx context.Context, a domain.Attempt) error
		ClaimHandshakes(ctx context.Context, limit int, claimFor time.Duration) ([]domain.Attempt, error)
		Verified(ctx context.Context, a domain.Attempt, rate int) error
		Refused(ctx context.Context, a domain.Attempt, reason string, pause, giveUp time.Duration) (domain.CallbackStatus, error)
		Pressing(ctx context.Context, soon time.Duration) (bool, error)
		Bury(ctx context.Context) error
		Sink(ctx context.Context, wanted bool, past time.Duration) error
	}
	eventStore interface {
		Retire(ctx context.Context, retention time.Duration) error
	}
	receivers interface {
		Send(ctx context.Context, a domain.Attempt) (answer, error)
		Ask(ctx context.Context, c domain.Callback) (consent, error)
	}
)

// answer is what a receiver said to an event.
type answer struct {
	status  int
	taken   bool
	gone    bool // it wants no event ever again
	busy    bool // it asks for a pause, of this length if it says so
	pause   time.Duration
	problem string // in our words; "" when it has taken the event
}

// consent is what a receiver said when it was asked.
type consent struct {
	given  bool
	rate   int    // deliveries a minute; 0 = any
	reason string // why it was not given
}

type service struct {
	outbox    outbox
	events    eventStore
	post      receivers
	sink      bool
	giveUp    time.Duration
	retention time.Duration
	claim     time.Duration // longer than an attempt
	lanes     *lanes
	turn      turn
}

const (
	inARow      = 20                     // deliveries of one stream, before others have a turn
	perCallback = 8                      // streams of one callback at once
	asksAtOnce  = 20                     // handshakes
	soon        = 3 * time.Second        // a loop waits for what is due within this
	shortPause  = 30 * time.Millisecond  // between two looks, so that claims are made for several at once
	longPause   = 500 * time.Millisecond // until a look without anything having happened here: others write events, too
)

// Maintain deletes what has become too old.
func (s *service) Maintain(ctx context.Context) error { return s.events.Retire(ctx, s.retention) }

// Deliver brings what is due to its receivers until nothing is due, nor will be soon. One call at a time in a process
// does so: when one is at it, that one looks once more, and the others return at once.
func (s *service) Deliver(ctx context.Context) error {
	loop := s.turn.begin()
	if loop == nil {
		s.lanes.poke()
		return nil
	}
	var attempts sync.WaitGroup
	defer attempts.Wait()
	defer loop.leave() // before the last attempts have ended: the next loop need not wait for them
	if err := errors.Join(s.outbox.Sink(ctx, s.sink, s.retention), s.outbox.Bury(ctx)); err != nil {
		return err
	}
	working, cancel := s.working(ctx)
	defer cancel()
	for working.Err() == nil {
		err := s.look(ctx, working, &attempts)
		if err == nil && s.lanes.empty() {
			var pressing bool
			if pressing, err = s.outbox.Pressing(working, soon); err == nil && !pressing && loop.end() {
				return nil
			}
		}
		if err != nil && working.Err() == nil {
			return err
		}
		s.lanes.rest(working)
	}
	return nil
}

// working ends before ctx does, so that the last attempts that begin have the time to end.
func (s *service) working(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	left := time.Until(deadline)
	return context.WithTimeout(ctx, max(left-s.claim, left/2))
}

// look begins what is due, as far as there is room.
func (s *service) look(ctx, working context.Context, attempts *sync.WaitGroup) error {
	fast, slow := s.lanes.free()
	for _, room := range []domain.Room{{Attempts: fast}, {Attempts: slow, Silent: true}} {
		if room.Attempts == 0 {
			continue
		}
		room.PerCallback, room.Held = perCallback, s.lanes.streams()
		due, err := s.outbox.Claim(working, room, s.claim)
		if err != nil {
			return err
		}
		for _, a := range due {
			seat := s.lanes.enter(a.Callback, room.Silent)
			attempts.Go(func() { s.stream(ctx, working, a, seat) })
		}
	}
	return s.lookForPending(ctx, working, attempts)
}

func (s *service) lookForPending(ctx, working context.Context, attempts *sync.WaitGroup) error {
	_, slow := s.lanes.free()
	if slow == 0 {
		return nil
	}
	pending, err := s.outbox.ClaimHandshakes(working, min(slow, asksAtOnce), s.claim)
	for _, a := range pending {
		seat := s.lanes.enter(a.Callback, true)
		attempts.Go(func() {
			defer seat.leave()
			s.ask(ctx, a)
		})
	}
	return err
}

// stream delivers what a stream holds, as long as its receiver takes it quickly and others need not wait for too long.
func (s *service) stream(ctx, working context.Context, a domain.Attempt, seat *seat) {
	defer seat.leave()
	for n := 1; ; n++ {
		next := s.attempt(ctx, a, func() bool {
			return n < inARow && working.Err() == nil && !seat.isSlow() && a.Callback.AllowedRate == 0
		})
		if next == nil {
			return
		}
		a = *next
	}
}

// attempt makes one attempt, writes down how it ended, and gives the stream's next when it may go on.
func (s *service) attempt(ctx context.Context, a domain.Attempt, goOn func() bool) (next *domain.Attempt) {
	got, err := s.post.Send(ctx, a)
	switch {
	case err != nil && ctx.Err() != nil: // this copy is asked to end: it was no attempt
		s.write(ctx, a, func(ctx context.Context) error { return s.outbox.Release(ctx, a) })
	case err == nil && got.taken:
		s.write(ctx, a, func(ctx context.Context) (err error) {
			next, err = s.outbox.Delivered(ctx, a, got.status, goOn(), s.claim)
			return err
		})
	default:
		s.fail(ctx, a, outcomeOf(a, got, err))
	}
	return next
}

func (s *service) fail(ctx context.Context, a domain.Attempt, f domain.Outcome) {
	log := slog.With("project_id", a.Callback.ProjectID, "callback_id", a.Callback.ID, "host", hostOf(a.Callback.URL),
		"subject", a.Event.Subject, "seq", a.Event.Seq)
	log.InfoContext(ctx, "delivery failed", "answer", f.Answer, "reason", f.Reason, "tries", a.Tries+1, "pause", f.Pause, "pause_all", f.PauseAll)
	s.write(ctx, a, func(ctx context.Context) error {
		dead, status, err := s.outbox.Failed(ctx, a, f, s.giveUp)
		if dead {
			log.WarnContext(ctx, "delivery given up")
		}
		if status == domain.CallbackGone || status == domain.CallbackSuspended {
			log.WarnContext(ctx, "callback ended", "status", status)
		}
		return err
	})
	if f.Gone {
		s.write(ctx, a, s.outbox.Bury)
	}
}

// ask asks a receiver for its consent.
func (s *service) ask(ctx context.Context, a domain.Attempt) {
	got, err := s.post.Ask(ctx, a.Callback)
	if err != nil && ctx.Err() != nil {
		return // the claim ends by itself
	}
	if err != nil {
		got.reason = "it was asked for its consent: " + reasonOf(err)
	}
	log := slog.With("project_id", a.Callback.ProjectID, "callback_id", a.Callback.ID, "host", hostOf(a.Callback.URL))
	s.write(ctx, a, func(ctx context.Context) error {
		if got.given {
			log.InfoContext(ctx, "callback verified", "rate", got.rate)
			return s.outbox.Verified(ctx, a, got.rate)
		}
		status, err := s.outbox.Refused(ctx, a, got.reason, domain.DeliveryPause(a.Tries+1, longestSilence), s.giveUp)
		log.InfoContext(ctx, "callback not verified", "reason", got.reason, "status", status)
		return err
	})
}

// How an end is written also when the time for the work is up, or Postgres is away for a moment. It stays within what the
// claim outlasts the attempt by.
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
		again := !errors.Is(err, domain.ErrFenced) && apperr.Retryable(err)
		if !again || !sleep(ctx, writePause) {
			slog.WarnContext(ctx, "how an attempt ended could not be written: it may be made again",
				"callback_id", a.Callback.ID, "subject", a.Event.Subject, "seq", a.Event.Seq, "error", err)
			return
		}
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
