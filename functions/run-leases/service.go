package runleases

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/due"
	"github.com/cloudfn/cloudfn/shared/leases"
	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

type service struct {
	db        *postgres.DB
	jobs      postgres.Jobs
	leases    postgres.Leases
	nodes     postgres.Nodes
	isolation postgres.Isolations
	engine    leases.Engine
	account   *openstack.Kept[*openstack.Session] // nil = hosts cannot be reserved
	adoption  AdoptConfig
	region    string
	wake      func(functions ...string)
	surveyed  time.Time // when the chore "pool" has surveyed the hosts last
}

const (
	jobKind = "run-leases"
	slots   = 32 // leases at a time: a quarter of them for each project, and for upkeep
	second  = 16 // of the minute, when the pool is due: no other function that calls OpenStack has the same

	retireEvery = time.Hour
	retireTime  = 2 * time.Minute
	// Leases that have ended are shown to their projects for this long.
	retireAfter = 90 * 24 * time.Hour
)

// newRunner works on due leases. Beside them it deletes old ones, adopts servers and reconciles the pool.
func (s *service) newRunner() *due.Runner[domain.Lease] {
	return &due.Runner[domain.Lease]{
		Store: s.leases.Queue(), ClaimFor: s.engine.ClaimFor, Slots: slots,
		Work: s.engine.Run,
		Describe: func(l domain.Lease) (noun string, attrs []any) {
			return "lease", []any{"lease_id", l.ID, "project_id", l.ProjectID, "status", l.Status}
		},
		Chores: &due.Chores{Jobs: s.jobs, Kind: jobKind, All: s.chores()},
	}
}

func (s *service) chores() []*due.Chore {
	all := []*due.Chore{{
		Name: "retire", Every: retireEvery, Limit: retireTime,
		Do: func(ctx context.Context) error { return s.leases.Retire(ctx, retireAfter) },
	}}
	if s.account == nil {
		return all
	}
	if s.adoption.isOn() {
		all = append(all, &due.Chore{Name: "adopt", Every: adoptEvery, Limit: adoptTime, Do: s.adopt})
	}
	return append(all, &due.Chore{
		Name: postgres.PoolJob, Second: second, Limit: poolTime, Do: s.reconcilePool, More: s.isPoolMoving,
		IsIdle: func(ctx context.Context) (bool, error) {
			isAny, err := s.nodes.HasPool(ctx)
			return !isAny, err
		},
	})
}

const (
	// poolTime bounds one reconcile of the pool, with a self-test. The claim of a replica that dies ends after it.
	poolTime = 2 * time.Minute
	// While hosts join or leave, the pool is reconciled more often than it is surveyed.
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
	slog.InfoContext(ctx, "isolation self-test done", "result", result.Result, "detail", result.Detail)
	writing, stop := domain.Detached(ctx) // the tests may have taken all of the time
	defer stop()
	return s.isolation.Set(writing, s.region, result.Result, result.Detail)
}
