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
	jobKind = "run-leases"
	// poolTime bounds one look at the pool, with a self-test. The claim of a replica that dies ends after it.
	poolTime = 2 * time.Minute
	// A self-test is repeated daily; one without a result is tried again after probeAgain.
	probeEvery = 24 * time.Hour
	probeAgain = 10 * time.Minute
)

// lookAfterPool surveys the hosts of the pool, and moves those that join or leave. What fails does so again at the next
// tick, and keeps no lease waiting.
func (s *service) lookAfterPool(ctx context.Context, survey bool) {
	if s.account == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, poolTime)
	defer cancel()
	claim, err := s.jobs.Claim(ctx, jobKind, "pool", poolTime)
	if err != nil || !claim.Acquired {
		if err != nil {
			slog.WarnContext(ctx, "the pool of reservable hosts", "error", err)
		}
		return
	}
	if err := s.tendPool(ctx, survey); err != nil {
		slog.WarnContext(ctx, "the pool of reservable hosts", "error", err)
		s.account.Forget(err)
	}
	ctx, stop := domain.Detached(ctx)
	defer stop()
	if err := s.jobs.Release(ctx, jobKind, "pool", claim); err != nil {
		slog.WarnContext(ctx, "the pool of reservable hosts", "error", err)
	}
}

func (s *service) tendPool(ctx context.Context, survey bool) error {
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
	if survey {
		surveyed = pool.Survey(ctx)
	}
	joined, err := pool.Move(ctx)
	if joined {
		err = errors.Join(err, pool.Survey(ctx))
	}
	return errors.Join(surveyed, err, s.probe(ctx, pool, joined))
}

func (s *service) isPoolMoving(ctx context.Context) (bool, error) {
	if s.account == nil {
		return false, nil
	}
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
