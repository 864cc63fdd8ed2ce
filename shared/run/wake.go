package run

import (
	"context"
	"slices"
	"time"

	"github.com/cloudfn/cloudfn/shared/eventx"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

// wakes is how this process wakes event functions: by HTTP where WAKE_URL says they are, else those that it serves
// itself. Whoever is somewhere else then has to wait for the next tick.
func (p *Process) wakes() func(ctx context.Context, function string) error {
	if p.cfg.WakeURL != "" {
		return eventx.PostWakes(p.cfg.WakeURL, p.cfg.EventKey, p.cfg.EventTimeout+coldStart)
	}
	return p.wakeOwn
}

// wakeOwn calls the function without a detour through HTTP: a process need not know its own address.
func (p *Process) wakeOwn(ctx context.Context, function string) error {
	i := slices.IndexFunc(p.events, func(e event) bool { return e.Name == function })
	if i >= 0 { // what is wrong with the work, it logs itself
		_ = p.events[i].Work(httpx.NewRequestID(ctx), eventx.Wake(function, p.cfg.EventKey, time.Now()))
	}
	return nil
}
