package runconnections

import (
	"context"
	"time"
)

// requestStore keeps requests for connections.
type requestStore interface {
	Expire(ctx context.Context) (int, error)
	Retire(ctx context.Context, age time.Duration) error
}

// expireRequests ends requests for connections that nobody has decided in time.
func (s *service) expireRequests(ctx context.Context) error {
	n, err := s.requests.Expire(ctx)
	if n > 0 {
		s.wake("deliver-events")
	}
	return err
}
