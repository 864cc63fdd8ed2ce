package flow

import "context"

// Pair lets one caller work and one more wait until it may. Further callers need not work: whoever waits begins after
// they came. Other than with a Coalescer a caller that waits is answered only when its own work has ended, so that an
// event whose process dies is sent again.
type Pair struct {
	work, next chan struct{} // hold one while a caller works, and while one waits
}

// NewPair returns a Pair that nobody works in.
func NewPair() Pair { return Pair{work: make(chan struct{}, 1), next: make(chan struct{}, 1)} }

// Enter waits until the caller may work; then the caller has to call leave. It is nil when another one waits already.
// err is that of ctx when it has ended first.
func (p Pair) Enter(ctx context.Context) (leave func(), err error) {
	select {
	case p.next <- struct{}{}:
	default:
		return nil, nil //nolint:nilnil // the caller has nothing to do
	}
	defer func() { <-p.next }()
	select {
	case p.work <- struct{}{}:
		return func() { <-p.work }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
