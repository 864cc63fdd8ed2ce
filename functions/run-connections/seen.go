package runconnections

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// seenTimeout bounds the reading of what can be ordered through a connection. With the login before it, it ends before
// the check's claim.
const seenTimeout = 15 * time.Second

// see reads what can be ordered through a connection whose delegation Keystone has just accepted, and stores it for who
// may act through it. A kind that cannot be read says why; when none can, what was seen before stays.
func (s *service) see(ctx context.Context, c domain.Connection) {
	began := time.Now()
	reading, cancel := context.WithTimeout(ctx, seenTimeout)
	defer cancel()
	in, err := s.cloud.in(reading, c, nil)
	if err != nil {
		return // a check says why
	}
	seen := readAll(reading, in)
	if len(seen.Problems) == len(domain.SeenKinds()) {
		slog.WarnContext(ctx, "nothing could be read through a connection", "connection_id", c.ID, "problems", seen.Problems)
		return
	}
	flavors := seen.Flavors
	seen.Bound(c.Limits)
	ctx, cancel = domain.Detached(ctx)
	defer cancel()
	if err = s.delegations.MarkSeen(ctx, c.ProjectID, c.ID, time.Since(began), seen); err == nil && flavors != nil {
		err = s.delegations.MarkReachable(ctx, c.ProjectID, c.ID, flavors)
	}
	if err != nil {
		slog.WarnContext(ctx, "connection not noted", "connection_id", c.ID, "error", err)
	}
}

// readAll reads all kinds at once.
func readAll(ctx context.Context, in session) domain.SeenResources {
	seen := domain.SeenResources{Problems: map[string]domain.Problem{}}
	var mu sync.Mutex
	var all sync.WaitGroup
	for kind, read := range map[string]func() error{
		domain.SeenFlavors: func() (err error) { seen.Flavors, err = list(in.Flavors(ctx)); return err },
		domain.SeenImages:  func() (err error) { seen.Images, err = list(in.Images(ctx, "")); return err },
		domain.SeenNetworks: func() (err error) {
			seen.Networks, err = list(in.Networks(ctx))
			return err
		},
		domain.SeenQuota: func() error {
			quota, err := in.Quota(ctx)
			if err == nil {
				seen.Quota = &quota
			}
			return err
		},
	} {
		all.Go(func() {
			if err := read(); err != nil {
				mu.Lock()
				defer mu.Unlock()
				seen.Problems[kind] = *problemOf(err)
			}
		})
	}
	all.Wait()
	return seen
}

// list is nil only when it could not be read.
func list[T any](found []T, err error) ([]T, error) {
	switch {
	case err != nil:
		return nil, err
	case found == nil:
		return []T{}, nil
	}
	return found, nil
}
