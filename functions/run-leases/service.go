package runleases

import (
	"context"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/due"
	"github.com/cloudfn/cloudfn/shared/leases"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

type service struct {
	db        *postgres.DB
	jobs      postgres.Jobs
	leases    postgres.Leases
	nodes     postgres.Nodes
	isolation postgres.Isolations
	engine    leases.Engine
	account   account // nil = hosts cannot be reserved
	adoption  AdoptConfig
	region    string
	wake      func(functions ...string)
	surveyed  time.Time // when the chore "pool" has surveyed the hosts last
}

// account keeps a session of the service account.
type account interface {
	Session(ctx context.Context) (session, error)
	Forget(err error)
}

// session is what this function needs of OpenStack.
type session interface {
	leases.Cloud
	AllServers(ctx context.Context, projectID, marker string) (page []domain.Server, next string, err error)
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

// newRunner works on due leases. Beside them it deletes old ones, adopts servers and looks after the pool.
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
