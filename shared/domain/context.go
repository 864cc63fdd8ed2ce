package domain

import (
	"context"
	"time"
)

// detachedFor bounds what is written after its request has ended: a database that hangs must not hold the process.
const detachedFor = 5 * time.Second

// Detached is a context for what must be written although the caller is gone or the time is up.
func Detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), detachedFor)
}

// Pause waits, and says whether the time went by before ctx ended.
func Pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
