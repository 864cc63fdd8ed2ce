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
	In       time.Duration // until it is due; it may be negative
	// IsFailing reports whether the function could not be woken the last time.
	IsFailing bool
}
