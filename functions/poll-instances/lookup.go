package pollinstances

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

const (
	lookUps     = 8   // servers at once that are asked for by id
	mostLookUps = 100 // instances that are asked for by id at each event; when more are in doubt, all are read
)

// lookUpUncertain asks by id for the servers of instances that Nova did not know last time, or that are unknown.
func (r *reader) lookUpUncertain(ctx context.Context) error {
	hasUncertain := func(p domain.Poll) bool { return p.Uncertain > 0 }
	if !slices.ContainsFunc(slices.Collect(maps.Values(r.projects)), hasUncertain) {
		return nil
	}
	uncertain, err := r.polls.ListUncertain(ctx, slices.Sorted(maps.Keys(r.projects)), mostLookUps)
	if err != nil {
		return err
	}
	return r.lookUp(ctx, uncertain, true)
}

// lookUp asks for servers by id, and stores what Nova says of each. An error leaves the instance as it is.
func (r *reader) lookUp(ctx context.Context, uncertain []domain.Instance, up bool) error {
	for some := range slices.Chunk(uncertain, mostLookUps) {
		at, err := r.db.Now(ctx)
		if err != nil {
			return err
		}
		if err := r.lookUpSome(ctx, at, some, up); err != nil {
			return err
		}
	}
	return nil
}

func (r *reader) lookUpSome(ctx context.Context, at time.Time, some []domain.Instance, up bool) error {
	known := make([]bool, len(some))
	errs := make([]error, len(some))
	var group errgroup.Group
	group.SetLimit(lookUps)
	for n := range some {
		group.Go(func() error {
			known[n], errs[n] = r.lookUpOne(ctx, at, &some[n], up)
			return nil
		})
	}
	_ = group.Wait() // the functions above never fail
	var news []domain.Instance
	for n, i := range some {
		if known[n] {
			i.SeenAt = at
			news = append(news, i)
		}
	}
	return errors.Join(retryable(errs), r.change(ctx, news))
}

// lookUpOne asks for one server; known is false when nothing can be said of it.
func (r *reader) lookUpOne(ctx context.Context, at time.Time, i *domain.Instance, up bool) (known bool, err error) {
	server, err := r.cloud.Server(ctx, i.ServerID)
	switch {
	case err == nil:
		i.Found(server)
		return true, nil
	case apperr.CodeOf(err) != apperr.NotFound:
		slog.WarnContext(ctx, "a server could not be looked up", "project_id", i.ProjectID, "instance_id", i.ID,
			"error", err)
		return false, err
	case !up:
		return false, nil // it may be in the cell that is down
	}
	return i.Missed(at), nil
}

// serverOf finds the instance's server: the stored one, or the one that OfServers chose for an instance without any.
func serverOf(i domain.Instance, servers []domain.Server) (found domain.Server, ok bool) {
	n := slices.IndexFunc(servers, func(s domain.Server) bool {
		return s.ProjectID == i.ProjectID && s.ID == i.ServerID
	})
	if n < 0 {
		return found, false
	}
	return servers[n], true
}
