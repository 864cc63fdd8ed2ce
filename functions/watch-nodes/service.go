package watchnodes

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/due"
	"github.com/cloudfn/cloudfn/shared/flow"
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

const (
	jobKind = "watch-nodes"
	// watchTime bounds one event's polls of the hosts. The claim of a replica that dies ends after it.
	watchTime = 50 * time.Second
	// keepDrains is how long drains that are over are kept, besides the last one of each host.
	keepDrains = 90 * 24 * time.Hour
)

// watch polls the hosts of the cloud. What fails is repeated by the next event.
func (s *service) watch(ctx context.Context) error {
	found, err := s.poll(ctx)
	if err != nil {
		slog.WarnContext(ctx, "node poll failed", "error", err)
		s.account.Forget(err)
		return nil
	}
	s.metrics.Push(ctx, measure(found))
	return nil
}

// poll reads the hosts, and once more when one has become suspect: it may have been a hiccup.
func (s *service) poll(ctx context.Context) (found nodes.Observed, err error) {
	cloud, err := s.account.Session(ctx)
	if err != nil {
		return found, s.unreadable(ctx, err)
	}
	watcher := s.watcher
	watcher.Cloud = cloud
	for isAgain := false; ; isAgain = true {
		found, err = watcher.Poll(ctx)
		switch {
		case found.Changed: // the leases of hosts that are down, or up again, are due
			s.wake("deliver-events", "run-leases")
		case err != nil:
			s.wake("deliver-events")
		}
		if err != nil || isAgain || !found.Changed || !hasSuspect(found.Nodes) || !flow.Sleep(ctx, s.againAfter) {
			return found, err
		}
	}
}

// unreadable reports that the hosts cannot be read, because the account cannot log in.
func (s *service) unreadable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return err
	}
	s.wake("deliver-events")
	return errors.Join(err, s.nodes.MonitorFailed(ctx, apperr.As(err).Message))
}

func hasSuspect(found []domain.Node) bool {
	return slices.ContainsFunc(found, func(n domain.Node) bool { return n.Status == domain.NodeSuspect })
}
