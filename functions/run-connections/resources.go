package runconnections

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// resourcesTimeout bounds readResources. With the login before it, it ends before the check's claim.
const resourcesTimeout = 15 * time.Second

// readResources reads what can be ordered through a connection whose delegation Keystone has just accepted, and stores
// it for the connection's users. A kind that cannot be read has a Problem. When none can be read, the stored resources
// stay.
func (s *service) readResources(ctx context.Context, c domain.Connection) {
	asOf, err := s.db.Now(ctx)
	if err != nil {
		slog.WarnContext(ctx, "the resources of a connection are not read", "connection_id", c.ID, "error", err)
		return
	}
	reading, cancel := context.WithTimeout(ctx, resourcesTimeout)
	defer cancel()
	in, err := s.cloud.in(reading, c, nil)
	if err != nil {
		return // a check says why
	}
	seen := readAll(reading, in)
	if len(seen.Problems) == len(domain.SeenKinds()) {
		slog.WarnContext(ctx, "nothing could be read through a connection", "connection_id", c.ID,
			"problems", seen.Problems)
		return
	}
	flavors := seen.Flavors
	seen.Bound(c.Limits)
	s.record(ctx, c, func(ctx context.Context) error {
		err := s.delegations.RecordResources(ctx, c.ProjectID, c.ID, asOf, seen)
		if err == nil && flavors != nil {
			err = s.delegations.MarkReachable(ctx, c.ProjectID, c.ID, flavors)
		}
		return err
	})
}

// readAll reads all kinds at once.
func readAll(ctx context.Context, in session) domain.SeenResources {
	seen := domain.SeenResources{Problems: map[string]domain.Problem{}}
	var mu sync.Mutex
	var all sync.WaitGroup
	for kind, read := range map[string]func() error{
		domain.SeenFlavors: func() (err error) { seen.Flavors, err = in.Flavors(ctx); return err },
		domain.SeenImages:  func() (err error) { seen.Images, err = in.Images(ctx, ""); return err },
		domain.SeenNetworks: func() (err error) {
			seen.Networks, err = in.Networks(ctx)
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
				seen.Problems[kind] = *domain.ProblemOf(err)
			}
		})
	}
	all.Wait()
	return seen
}
