package watchnodes

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/flow"
	"github.com/cloudfn/cloudfn/shared/nodes"
)

const (
	jobKind = "watch-nodes"
	// watchTime bounds one event's polls of the hosts. The claim of a replica that dies ends after it.
	watchTime = 50 * time.Second
	// keepDrains is how long drains that are over are kept, besides the last one of each host.
	keepDrains = 90 * 24 * time.Hour
)

// watch polls the hosts of the cloud, in one replica at a time. What fails is repeated at the next tick, and keeps
// no drain waiting.
func (s *service) watch(ctx context.Context) {
	if s.account == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, watchTime)
	defer cancel()
	claim, err := s.jobs.Claim(ctx, jobKind, "watch", watchTime)
	if err != nil || !claim.Acquired {
		if err != nil {
			slog.WarnContext(ctx, "nodes are not watched", "error", err)
		}
		return
	}
	if err := s.poll(ctx); err != nil {
		slog.WarnContext(ctx, "nodes are not watched", "error", err)
		s.account.Forget(err)
	}
	ctx, stop := domain.Detached(ctx)
	defer stop()
	if err := s.jobs.Release(ctx, jobKind, "watch", claim); err != nil {
		slog.WarnContext(ctx, "nodes are watched late", "error", err)
	}
}

// poll reads the hosts, and once more when one has become suspect: it may have been a hiccup.
func (s *service) poll(ctx context.Context) error {
	cloud, err := s.account.Session(ctx)
	if err != nil {
		return s.unreadable(ctx, err)
	}
	watcher := s.watcher
	watcher.Cloud = cloud
	for isAgain := false; ; isAgain = true {
		found, err := watcher.Poll(ctx)
		if found.Changed || err != nil {
			s.wake("deliver-events")
		}
		if err != nil {
			return err
		}
		if isAgain || !found.Changed || !hasSuspect(found.Nodes) || !flow.Sleep(ctx, s.againAfter) {
			s.tidy(ctx, found)
			return nil
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

// tidy measures the nodes and their drains, and deletes old drains. The hosts were watched all the same if that fails.
func (s *service) tidy(ctx context.Context, found nodes.Observed) {
	s.metrics.Push(ctx, measure(found))
	if err := s.drains.Retire(ctx, keepDrains); err != nil {
		slog.WarnContext(ctx, "old drains are not deleted", "error", err)
	}
}
