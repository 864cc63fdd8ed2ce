package apperr

import "time"

// Limit is a limit on how often one source may do something: Quota times at once, and again as Window passes, evenly.
// Without a Window it is a limit on how many requests of the source are in flight.
type Limit struct {
	Name   string // of its policy in the RateLimit headers
	Quota  int
	Window time.Duration
}

// Each is how long one use takes of the Window.
func (l Limit) Each() time.Duration { return l.Window / time.Duration(l.Quota) }

// Exceeded is the error of a request over the limit. source is who sends too much, such as "this address"; retryAfter
// is when the next one is within the limit.
func (l Limit) Exceeded(source string, retryAfter time.Duration) *Error {
	within := "within " + l.Window.String()
	if l.Window == 0 {
		within = "in flight"
	}
	err := New(RateLimited, "too many requests of %s: at most %d %s; wait as long as Retry-After says", source, l.Quota,
		within)
	err.Limit, err.RetryAfter = &l, max(retryAfter, time.Second)
	return err
}

// PerMinute is a limit of so many within a minute.
func PerMinute(name string, quota int) Limit {
	return Limit{Name: name, Quota: quota, Window: time.Minute}
}
