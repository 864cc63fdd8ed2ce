package due

import "time"

// Declared is what a function declares that is due.
type Declared struct {
	Function string
	// SQL are queries. Each returns the earliest moment within $1 at which the function has something to do; null, or
	// no row, is nothing to do. A moment that is past is now.
	SQL []string
}

// Waiting is a function that has something due.
type Waiting struct {
	Function string
	In       time.Duration // until the earliest of it is due; it may be negative
	Newest   time.Duration // until the latest of what is due now was due: zero or negative. In, if nothing is due now
	// Later is when another query finds something that is not due now; nil = none does within the time that was asked
	// for. What a query finds is its earliest row: one that cannot be done hides the later ones of its queue.
	Later *time.Duration
	// IsForgotten reports whether nothing is due any more of a function that could not be woken for some time.
	IsForgotten bool
	// IsUnregistered reports whether it is due only because no process of it has registered its periodic jobs.
	IsUnregistered bool
	// IsFailing reports whether the function could not be woken the last time.
	IsFailing bool
}
