package domain

import (
	"context"
	"time"
)

// detachedFor bounds writes after the end of a request: a hanging database must not keep the process.
const detachedFor = 5 * time.Second

// Detached returns a context for writes that must happen even after the caller is gone or the deadline has passed.
func Detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), detachedFor)
}
