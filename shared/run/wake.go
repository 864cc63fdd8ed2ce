package run

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/due"
	"github.com/cloudfn/cloudfn/shared/eventx"
	"github.com/cloudfn/cloudfn/shared/flow"
	"github.com/cloudfn/cloudfn/shared/httpx"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

// wakes returns how this process wakes event functions: by HTTP at WAKE_URL, or else its own. Other functions wait for
// the clock.
func (p *Process) wakes() func(ctx context.Context, function string) error {
	if p.cfg.WakeURL != "" {
		return eventx.PostWakes(p.cfg.WakeURL, p.cfg.EventKey, p.cfg.EventTimeout+coldStart)
	}
	return p.wakeOwn
}

// wakesOf returns how a function wakes those that its declaration lists. Knative gives it neither a route nor the key
// for any other, so the daemon does not wake them either.
func (p *Process) wakesOf(f function) func(functions ...string) {
	return func(functions ...string) {
		for _, name := range functions {
			if !slices.Contains(f.Reach.Wakes, name) {
				slog.Error("a function wakes another one that its declaration does not list", "function", f.Name,
					"wakes", name)
				continue
			}
			p.waker.Wake(name)
		}
	}
}

// wakeOwn calls the function without HTTP: a process need not know its own address.
func (p *Process) wakeOwn(ctx context.Context, function string) error {
	i := slices.IndexFunc(p.events, func(e event) bool { return e.Name == function })
	if i < 0 {
		return nil
	}
	p.working.Add(1)
	defer p.working.Add(-1)
	err := p.events[i].Work(httpx.NewRequestID(ctx), eventx.Wake(function, p.cfg.EventKey, time.Now()))
	if err != nil {
		return fmt.Errorf("%w: %w", eventx.ErrNotDone, err)
	}
	return nil
}

// clockName is the function that wakes the others when something is due.
const clockName = "clock"

// postOf returns how the clock wakes a function; nil = it reaches none.
func (p *Process) postOf(f function) func(ctx context.Context, function string) error {
	if f.Name != clockName || p.cfg.Target != "" && p.cfg.WakeURL == "" {
		return nil
	}
	return p.wakes()
}

// leaveToClock returns an event's work that wakes the clock at its end if more is due within the next minute: the
// clock's last tick cannot know of it, and the function does not wait for what is not due soon.
func (p *Process) leaveToClock(f function, work eventx.Func) eventx.Func {
	if len(f.Due) == 0 || !slices.Contains(f.Reach.Wakes, clockName) {
		return work
	}
	return func(ctx context.Context, event cloudevents.Event) error {
		planRest := func() {
			reading, cancel := domain.Detached(ctx)
			defer cancel()
			// What is due already is left to the next tick: this event could not do it.
			isLater, err := postgres.IsDueLater(reading, p.db, f.Due, due.FollowFor)
			if err == nil && isLater {
				p.wakesOf(f)(clockName)
			}
		}
		defer planRest()
		return work(due.WithRest(ctx, planRest), event)
	}
}

// atStart does what functions have asked for when the process serves. What fails is repeated, with pauses.
func (p *Process) atStart(ctx context.Context) {
	var all sync.WaitGroup
	for _, do := range p.starts {
		all.Go(func() {
			for n := 1; ; n++ {
				limited, cancel := context.WithTimeout(ctx, startTimeout)
				err := do(limited)
				cancel()
				if err == nil || !flow.Sleep(ctx, flow.Backoff(startPause, longestStartPause, n)) {
					return
				}
				slog.WarnContext(ctx, "start failed", "error", err, "retry", true)
			}
		})
	}
	all.Wait()
}

const (
	startTimeout      = 30 * time.Second
	startPause        = time.Second
	longestStartPause = 30 * time.Second
)
