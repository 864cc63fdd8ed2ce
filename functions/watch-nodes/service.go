package watchnodes

import (
	"context"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/due"
	"github.com/cloudfn/cloudfn/shared/nodes"
	"github.com/cloudfn/cloudfn/shared/obs"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/run"
)

type service struct {
	db      *postgres.DB
	jobs    postgres.Jobs
	nodes   postgres.Nodes
	drains  postgres.Drains
	watcher nodes.Watcher
	engine  nodes.Engine
	account account // nil = nothing is watched
	wake    func(functions ...string)

	againAfter time.Duration // after it hosts that have just become suspect are polled once more
	metrics    *obs.Snapshot
}

// account keeps a session of the service account.
type account interface {
	Session(ctx context.Context) (session, error)
	Forget(err error)
}

// session is what this function needs of OpenStack.
type session interface {
	nodes.WatchCloud
	nodes.DrainCloud
}

func newService(d run.Deps) *service {
	return &service{
		db: d.DB, jobs: postgres.Jobs{DB: d.DB}, wake: d.Wake,
		againAfter: 10 * time.Second, metrics: obs.NewSnapshot(gauges),
	}
}

const (
	slots  = 4  // drains at a time
	second = 32 // of the minute, when the hosts are polled: no other function that calls OpenStack has the same

	retireEvery = time.Hour
	retireTime  = 2 * time.Minute
)

// newRunner works on due drains. Beside them it watches the hosts, and deletes old drains.
func (s *service) newRunner() *due.Runner[domain.Drain] {
	all := []*due.Chore{{
		Name: "retire", Every: retireEvery, Limit: retireTime,
		Do: func(ctx context.Context) error { return s.drains.Retire(ctx, keepDrains) },
	}}
	if s.account != nil {
		all = append(all, &due.Chore{Name: "watch", Second: second, Limit: watchTime, Do: s.watch})
	}
	return &due.Runner[domain.Drain]{
		Store: s.drains.Queue(), ClaimFor: nodes.ClaimFor, Slots: slots,
		Chores: &due.Chores{Jobs: s.jobs, Kind: jobKind, All: all},
		Work:   s.engine.Run,
		Describe: func(d domain.Drain) (noun string, attrs []any) {
			return "drain", []any{"node", d.Node, "drain_id", d.ID}
		},
	}
}
