package run

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/sethvargo/go-envconfig"
)

// Settings is the public result of the last check of a process's settings, without names: it needs no token.
// `cloudfnd check` and the log have details.
type Settings struct {
	OK        bool       `json:"ok"`                   // none is known not to work
	CheckedAt *time.Time `json:"checked_at,omitempty"` // absent while the first check runs
}

// How long the result of a check is valid. A check logs in, so not every request makes one.
const (
	settingsTTL      = 5 * time.Minute
	wrongSettingsTTL = 30 * time.Second // to show soon when it is fixed
)

// watchedSettings caches the last result, and runs one check at a time.
type watchedSettings struct {
	env     envconfig.Lookuper
	targets []function

	mu      sync.Mutex
	last    Settings
	running chan struct{} // closed when the check that runs has ended; nil when none does
	stop    context.CancelFunc
	closed  bool
}

// checkedSettings returns the last result, and starts a check if it is old. It waits for the first result until ctx
// ends.
func (p *Process) checkedSettings(ctx context.Context) Settings {
	w := &p.settings
	w.mu.Lock()
	if w.running == nil && !w.closed && !w.fresh() {
		p.startCheck(ctx)
	}
	running, known := w.running, w.last.CheckedAt != nil
	w.mu.Unlock()
	if running != nil && !known {
		select {
		case <-running:
		case <-ctx.Done():
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last.CheckedAt == nil {
		return Settings{OK: true}
	}
	return w.last
}

func (w *watchedSettings) fresh() bool {
	if w.last.CheckedAt == nil {
		return false
	}
	ttl := settingsTTL
	if !w.last.OK {
		ttl = wrongSettingsTTL
	}
	return time.Since(*w.last.CheckedAt) < ttl
}

// startCheck needs the lock. The check may outlive its request.
func (p *Process) startCheck(ctx context.Context) {
	w := &p.settings
	ctx, w.stop = context.WithTimeout(context.WithoutCancel(ctx), trialTimeout)
	done := make(chan struct{})
	w.running = done
	go func() {
		defer close(done)
		t := &trial{settings: newSettings(w.env, w.targets), cfg: p.cfg, db: p.db, cloud: p.cloud}
		t.run(ctx)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.stop()
		now := time.Now().UTC()
		wrong := t.wrongNames()
		w.last, w.running = Settings{OK: len(wrong) == 0, CheckedAt: &now}, nil
		for _, name := range wrong {
			slog.WarnContext(ctx, "a setting does not work", "variable", name, "detail", t.wrong[name])
		}
	}()
}

// close cancels a running check, and waits for its end.
func (w *watchedSettings) close() {
	w.mu.Lock()
	w.closed = true
	running := w.running
	if running != nil {
		w.stop()
	}
	w.mu.Unlock()
	if running != nil {
		<-running
	}
}
