package run

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/cloudfn/cloudfn/shared/eventx"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

// wakes returns how this process wakes event functions: by HTTP at WAKE_URL, or else its own. Other functions wait for
// the next tick.
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
	if i >= 0 { // Work logs its errors
		_ = p.events[i].Work(httpx.NewRequestID(ctx), eventx.Wake(function, p.cfg.EventKey, time.Now()))
	}
	return nil
}
