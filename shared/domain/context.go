package domain

import (
	"context"
	"time"
)

// detachedFor bounds writes after the end of a request: a hanging database must not keep the process.
const detachedFor = 5 * time.Second

// Detached returns a context for writes that must happen even after the caller is gone or the deadline has passed. No
// limit refuses them: they store what was done.
func Detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(Accepted(context.WithoutCancel(ctx)), detachedFor)
}

// EventBudget is how many events and deliveries a minute the requests of a source may write.
type EventBudget struct {
	Source     string // a project
	PerMinute  int
	IsAccepted bool // what is written counts, and is never refused
}

type budgetKey struct{}

// WithEventBudget counts the events that are written with the context.
func WithEventBudget(ctx context.Context, b EventBudget) context.Context {
	return context.WithValue(ctx, budgetKey{}, b)
}

// EventBudgetFrom returns the budget of the events that are written with the context; zero = they do not count.
func EventBudgetFrom(ctx context.Context) EventBudget {
	b, _ := ctx.Value(budgetKey{}).(EventBudget)
	return b
}

// Accepted returns a context for the work of a request that was accepted: its events count, and none is refused.
func Accepted(ctx context.Context) context.Context {
	b := EventBudgetFrom(ctx)
	if b.Source == "" || b.IsAccepted {
		return ctx
	}
	b.IsAccepted = true
	return WithEventBudget(ctx, b)
}
