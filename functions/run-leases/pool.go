package runleases

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/leases"
)

const (
	// poolTime bounds one look at the pool, with a self-test. The claim of a replica that dies ends after it.
	poolTime = 2 * time.Minute
	// While hosts join or leave, the pool is looked at more often than it is surveyed.
	surveyEvery = 30 * time.Second
	// A self-test is repeated daily; one without a result is tried again after probeAgain.
	probeEvery = 24 * time.Hour
	probeAgain = 10 * time.Minute
)

// reconcilePool surveys the hosts of the pool, and moves those that join or leave. What the cloud refuses is repeated
// by the next event.
func (s *service) reconcilePool(ctx context.Context) error {
	err := s.tryPool(ctx)
	if err != nil {
		slog.WarnContext(ctx, "pool reconcile failed", "error", err)
		s.account.Forget(err)
	}
	return nil
}

func (s *service) tryPool(ctx context.Context) error {
	nodes, err := s.nodes.Pool(ctx)
	if err != nil || len(nodes) == 0 {
		return err
	}
	cloud, err := s.account.Session(ctx)
	if err != nil {
		return err
	}
	pool := leases.Pool{Nodes: s.nodes, Cloud: cloud}
	var surveyed error
	if time.Since(s.surveyed) >= surveyEvery {
		s.surveyed, surveyed = time.Now(), pool.Survey(ctx)
	}
	joined, err := pool.Move(ctx)
	if joined {
		err = errors.Join(err, pool.Survey(ctx))
	}
	return errors.Join(surveyed, err, s.probe(ctx, pool, joined))
}

func (s *service) isPoolMoving(ctx context.Context) (bool, error) {
	return leases.Pool{Nodes: s.nodes}.IsMoving(ctx)
}

// probe tests the isolation when a host has joined, and daily.
func (s *service) probe(ctx context.Context, pool leases.Pool, joined bool) error {
	now, err := s.db.Now(ctx)
	if err != nil {
		return err
	}
	last, err := s.isolation.Get(ctx, s.region)
	if err != nil || !joined && now.Sub(last.TestedAt) < probeEvery {
		return err
	}
	claim, err := s.jobs.Claim(ctx, jobKind, "probe", probeAgain) // never released: that spaces the attempts
	if err != nil || !claim.Acquired && !joined {
		return err
	}
	busy, err := s.leases.Allocations(ctx, domain.AllocationQuery{From: now, Until: now.Add(leases.ProbeMargin)})
	if err != nil {
		return err
	}
	result, ok, err := pool.Probe(ctx, busy)
	if err != nil || !ok {
		return err
	}
	slog.InfoContext(ctx, "the isolation of reservable hosts", "result", result.Result, "detail", result.Detail)
	writing, stop := domain.Detached(ctx) // the tests may have taken all of the time
	defer stop()
	return s.isolation.Set(writing, s.region, result.Result, result.Detail)
}
